"""
The day that `bidplane demo` and `bidplane up --example` play.

`agents` and `day` are the script, `demo` plays it in virtual time and `example` on a running
installation, `chronicle` narrates, `judgement` counts. `night` and `service` add the pilot and a
service that sleeps. It acts as agents and an owner do, through the API.
"""

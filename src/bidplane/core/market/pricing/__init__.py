"""
Prices around clearing. Pure; all amounts are integers.

    reserve              the base price
    metering             the rent that is owed so far
    purses, affording    winners that must be able to pay
    instant, early       the float, and rounds before their time
    explain              why a bid lost
"""

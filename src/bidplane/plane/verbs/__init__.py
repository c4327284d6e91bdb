"""Operations on objects, one file per verb. A verb decides, then awaits the store once."""

return carry_out(KEYS, ARGV)

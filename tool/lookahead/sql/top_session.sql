-- Never wait for long: a server that cannot answer is shown as such.
SELECT set_config('statement_timeout', '5s', false), set_config('lock_timeout', '1s', false);

-- Variables, results in every shape, copies, cursors, savepoints and errors.
\set who 3
SELECT id, email FROM people WHERE id = :who;
SELECT :'who' AS quoted, :who + 1 AS number;
SELECT count(*) AS people, max(id) AS last FROM people \gset
\echo :people :last
SELECT id, email, plan, born, tags, data, joined IS NOT NULL AS known, nick FROM people WHERE id = 1 \gdesc
SELECT * FROM orders WHERE person = 1 \gdesc
SELECT format('SELECT %s AS n', n) FROM generate_series(1, 3) n \gexec
\x on
SELECT id, email, data FROM people WHERE id < 3 ORDER BY id;
\x off
\a
\t on
SELECT id, total FROM orders WHERE person = 1 ORDER BY id;
\t off
\a
\pset null '(none)'
SELECT NULL::int AS n, ''::text AS t, true AS b, 1.50::numeric AS d, 'infinity'::float8 AS f, '{1,NULL}'::int[] AS a;
\pset format csv
SELECT id, email FROM people WHERE id IN (4, 5) ORDER BY id;
\pset format aligned
SELECT person, gift, count(*) FROM orders WHERE person < 4 GROUP BY 1, 2 ORDER BY 1 \crosstabview person gift count
\if :{?who}
SELECT 'is set' AS who;
\else
SELECT 'is not set' AS who;
\endif
-- Rows by cursor.
\set FETCH_COUNT 7
SELECT id FROM people ORDER BY id;
\unset FETCH_COUNT
-- Copies.
CREATE TABLE copied (id int PRIMARY KEY, t text, n numeric);
\copy copied FROM pstdin WITH (FORMAT csv, HEADER)
id,t,n
1,plain,1.5
2,"with, comma",
3,"with ""quotes""",-7
\.
SELECT * FROM copied ORDER BY id;
COPY copied (id, t) FROM STDIN;
4	tab\tbed
5	\N
\.
\copy (SELECT id, t FROM copied ORDER BY id) TO pstdout
\copy (SELECT * FROM copied ORDER BY id) TO pstdout WITH (FORMAT csv, HEADER, FORCE_QUOTE (t))
COPY (SELECT count(*), sum(n) FROM copied) TO STDOUT;
-- In which line it was is not known here: rows are inserted many at a time.
\set SHOW_CONTEXT never
\copy copied FROM pstdin
1	again	2
\.
\set SHOW_CONTEXT errors
\copy copied FROM pstdin
x	bad	2
\.
SELECT count(*) FROM copied;
-- Transactions.
BEGIN;
INSERT INTO copied VALUES (6, 'six', 6);
\echo :ROW_COUNT
ROLLBACK;
SELECT count(*) FROM copied WHERE id = 6;
\set ON_ERROR_ROLLBACK on
BEGIN;
INSERT INTO copied VALUES (7, 'seven', 7);
INSERT INTO copied VALUES (7, 'seven', 7);
INSERT INTO copied VALUES (8, 'eight', 8);
COMMIT;
SELECT id FROM copied WHERE id > 6 ORDER BY id;
\set ON_ERROR_ROLLBACK off
BEGIN;
SELECT 1/0;
\echo :SQLSTATE :LAST_ERROR_MESSAGE
SELECT 1;
COMMIT;
-- Errors, with the place in the text.
SELECT id, nothing FROM people;
SELECT * FROM nothing;
SELEC 1;
SELECT 'x'::int;
SELECT lower(1, 2);
INSERT INTO plans VALUES (1, 'other', 0);
\set VERBOSITY verbose
INSERT INTO plans VALUES (7, 'free', 0);
INSERT INTO plans (id) VALUES (9);
INSERT INTO plans VALUES (9, 'x', NULL);
\set VERBOSITY default
SELECT 1 AS one \; SELECT 2 AS two;
PREPARE q (int) AS SELECT $1 + 1 AS n;
EXECUTE q (41);
DEALLOCATE q;
EXECUTE q (41);
SET TimeZone = 'Europe/Berlin';
SHOW TimeZone;
SELECT timestamptz '2024-07-01 12:00+00';
RESET TimeZone;
SET DateStyle = 'German';
SELECT date '2024-07-01';
RESET DateStyle;
SELECT current_user, session_user, current_database(), current_schema();
EXPLAIN (COSTS OFF) SELECT 1 WHERE false \g /dev/null
DROP TABLE copied;
DROP TABLE IF EXISTS copied;

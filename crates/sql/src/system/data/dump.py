#!/usr/bin/env python3
"""Writes the files of this folder from a PostgreSQL 15 server: `dump.py -h HOST -p PORT -U USER` (arguments of psql).

relations.tsv   one line `= schema name kind oid` for each system relation, then one line `name type modifier notnull`
                for each column. Domains of information_schema are given as their base types, which is also what
                PostgreSQL tells its clients.
keywords.tsv    the rows of pg_get_keywords().
<catalog>.tsv   rows that every database has. The first line names the columns; one that is the same in all rows is
                `name=value` there and left out of the rows. Values are in COPY's text format, reg* types as numbers.
"""
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).parent

RELATIONS = r"""
SELECT line FROM (
  SELECT n.nspname, c.relname, 0 AS at, concat_ws(E'\t', '=', n.nspname, c.relname, c.relkind, c.oid) AS line
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE n.nspname IN ('pg_catalog', 'information_schema') AND c.relkind IN ('r', 'v')
  UNION ALL
  SELECT n.nspname, c.relname, a.attnum, concat_ws(E'\t', a.attname,
    CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.oid END,
    CASE t.typtype WHEN 'd' THEN t.typtypmod ELSE a.atttypmod END, CASE WHEN a.attnotnull THEN 't' ELSE 'f' END)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid
  JOIN pg_type t ON t.oid = a.atttypid
  WHERE n.nspname IN ('pg_catalog', 'information_schema') AND c.relkind IN ('r', 'v') AND a.attnum > 0
) AS lines ORDER BY nspname DESC, relname, at"""

# Types of rows of the system relations are left out: no value can have them here. Access control lists are empty, since
# they name PostgreSQL's roles, and so is where that server's settings came from. Expressions are given as text.
CATALOGS = {
    "pg_type": "typnamespace = 11 AND typtype <> 'c' AND NOT EXISTS (SELECT FROM pg_type e WHERE e.oid = x.typelem AND e.typtype = 'c')",
    "pg_proc": "pronamespace = 11",
    "pg_operator": "true",
    "pg_opclass": "true",
    "pg_opfamily": "true",
    "pg_am": "true",
    "pg_cast": "true",
    "pg_aggregate": "true",
    "pg_range": "true",
    "pg_collation": "collname IN ('default', 'C', 'POSIX', 'ucs_basic')",
    "pg_language": "lanname <> 'plpgsql'",
    "pg_description": "classoid IN ('pg_proc'::regclass, 'pg_type'::regclass, 'pg_operator'::regclass, 'pg_am'::regclass, 'pg_collation'::regclass) AND objoid < 12000",
    "pg_settings": "name !~ '_(file|directory|directories)$'",
}
ORDER = {"pg_settings": "name", "pg_description": "classoid, objoid", "pg_aggregate": "aggfnoid", "pg_range": "rngtypid"}
EMPTY = {"proacl", "typacl", "lanacl", "sourcefile", "sourceline", "prosqlbody"}


def psql(sql):
    return subprocess.run(["psql", "-XAtq", *sys.argv[1:], "-c", sql], check=True, capture_output=True, text=True).stdout


def columns(catalog):
    found = psql(f"SELECT attname, atttypid::regtype FROM pg_attribute WHERE attrelid = '{catalog}'::regclass AND attnum > 0 ORDER BY attnum")
    for name, kind in (line.split("|") for line in found.splitlines()):
        if name in EMPTY:
            yield f"NULL AS {name}"
        elif name == "proargdefaults":
            yield f"pg_get_expr({name}, 0) AS {name}"
        else:
            yield f"{name}::oid" if kind.startswith("reg") and not kind.endswith("[]") else name


def dump(catalog, condition):
    names = [c.split(" AS ")[-1].removesuffix("::oid") for c in columns(catalog)]
    select = f"SELECT {', '.join(columns(catalog))} FROM {catalog} x WHERE {condition} ORDER BY {ORDER.get(catalog, 'oid')}"
    rows = [line.split("\t") for line in psql(f"COPY ({select}) TO STDOUT").splitlines()]
    same = [len({row[at] for row in rows}) == 1 for at in range(len(names))]
    head = [f"{name}={rows[0][at]}" if same[at] else name for at, name in enumerate(names)]
    lines = [head] + [[value for at, value in enumerate(row) if not same[at]] for row in rows]
    (HERE / f"{catalog}.tsv").write_text("".join("\t".join(line) + "\n" for line in lines))


(HERE / "relations.tsv").write_text(psql(RELATIONS))
(HERE / "keywords.tsv").write_text(psql("COPY (SELECT * FROM pg_get_keywords() ORDER BY word) TO STDOUT"))
for catalog, condition in CATALOGS.items():
    dump(catalog, condition)

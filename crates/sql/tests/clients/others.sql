-- In the manner of other drivers and tools: the relations, functions and constructs that they use, not their text.
-- {name} stands for the oid of the relation of that name. A comment before a statement gives its parameters.

-- JDBC: getSchemas
SELECT nspname AS table_schem, NULL AS table_catalog FROM pg_catalog.pg_namespace
WHERE nspname <> 'pg_toast'
  AND (nspname !~ '^pg_temp_' OR nspname = (pg_catalog.current_schemas(true))[1])
  AND (nspname !~ '^pg_toast_temp_' OR nspname = replace((pg_catalog.current_schemas(true))[1], 'pg_temp_', 'pg_toast_temp_'))
ORDER BY table_schem;

-- JDBC: getTables
SELECT current_database() AS table_cat, n.nspname AS table_schem, c.relname AS table_name,
  CASE n.nspname ~ '^pg_' OR n.nspname = 'information_schema'
    WHEN true THEN CASE
      WHEN n.nspname = 'pg_catalog' OR n.nspname = 'information_schema' THEN CASE c.relkind
        WHEN 'r' THEN 'SYSTEM TABLE' WHEN 'v' THEN 'SYSTEM VIEW' WHEN 'i' THEN 'SYSTEM INDEX' ELSE NULL END
      ELSE NULL END
    WHEN false THEN CASE c.relkind
      WHEN 'r' THEN 'TABLE' WHEN 'i' THEN 'INDEX' WHEN 'S' THEN 'SEQUENCE' WHEN 'v' THEN 'VIEW' ELSE NULL END
    ELSE NULL END AS table_type,
  d.description AS remarks, '' AS type_cat, '' AS type_schem, '' AS type_name
FROM pg_catalog.pg_namespace n, pg_catalog.pg_class c
  LEFT JOIN pg_catalog.pg_description d ON (c.oid = d.objoid AND d.objsubid = 0 AND d.classoid = 'pg_class'::regclass)
WHERE c.relnamespace = n.oid AND n.nspname LIKE 'public' AND c.relname LIKE '%'
  AND (false OR (c.relkind = 'r' AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'))
ORDER BY table_type, table_schem, table_name;

-- JDBC: getColumns
SELECT * FROM (
  SELECT current_database() AS current_database, n.nspname, c.relname, a.attname, a.atttypid,
    a.attnotnull OR (t.typtype = 'd' AND t.typnotnull) AS attnotnull, a.atttypmod, a.attlen, t.typtypmod,
    row_number() OVER (PARTITION BY a.attrelid ORDER BY a.attnum) AS attnum,
    nullif(a.attidentity, '') AS attidentity, nullif(a.attgenerated, '') AS attgenerated,
    pg_catalog.pg_get_expr(def.adbin, def.adrelid) AS adsrc, dsc.description, t.typbasetype, t.typtype
  FROM pg_catalog.pg_namespace n
    JOIN pg_catalog.pg_class c ON (c.relnamespace = n.oid)
    JOIN pg_catalog.pg_attribute a ON (a.attrelid = c.oid)
    JOIN pg_catalog.pg_type t ON (a.atttypid = t.oid)
    LEFT JOIN pg_catalog.pg_attrdef def ON (a.attrelid = def.adrelid AND a.attnum = def.adnum)
    LEFT JOIN pg_catalog.pg_description dsc ON (c.oid = dsc.objoid AND a.attnum = dsc.objsubid)
    LEFT JOIN pg_catalog.pg_class dc ON (dc.oid = dsc.classoid AND dc.relname = 'pg_class')
    LEFT JOIN pg_catalog.pg_namespace dn ON (dc.relnamespace = dn.oid AND dn.nspname = 'pg_catalog')
  WHERE c.relkind IN ('r', 'p', 'v', 'f', 'm') AND a.attnum > 0 AND NOT a.attisdropped
    AND n.nspname LIKE 'public' AND c.relname LIKE 'users'
) c WHERE true AND attname LIKE '%'
ORDER BY nspname, c.relname, attnum;

-- JDBC: getPrimaryKeys
SELECT result.table_cat, result.table_schem, result.table_name, result.column_name, result.key_seq, result.pk_name
FROM (
  SELECT current_database() AS table_cat, n.nspname AS table_schem, ct.relname AS table_name, a.attname AS column_name,
    (information_schema._pg_expandarray(i.indkey)).n AS key_seq, ci.relname AS pk_name,
    information_schema._pg_expandarray(i.indkey) AS keys, a.attnum AS a_attnum
  FROM pg_catalog.pg_class ct
    JOIN pg_catalog.pg_attribute a ON (ct.oid = a.attrelid)
    JOIN pg_catalog.pg_namespace n ON (ct.relnamespace = n.oid)
    JOIN pg_catalog.pg_index i ON (a.attrelid = i.indrelid)
    JOIN pg_catalog.pg_class ci ON (ci.oid = i.indexrelid)
  WHERE true AND n.nspname = 'public' AND ct.relname = 'orders' AND i.indisprimary
) result
WHERE result.a_attnum = (result.keys).x
ORDER BY result.table_name, result.pk_name, result.key_seq;

-- JDBC: getImportedKeys
SELECT current_database() AS pktable_cat, pkn.nspname AS pktable_schem, pkc.relname AS pktable_name,
  pka.attname AS pkcolumn_name, fkc.relname AS fktable_name, fka.attname AS fkcolumn_name, pos.n AS key_seq,
  CASE con.confupdtype WHEN 'c' THEN 0 WHEN 'n' THEN 2 WHEN 'd' THEN 4 WHEN 'r' THEN 1 WHEN 'p' THEN 1 WHEN 'a' THEN 3 ELSE NULL END AS update_rule,
  CASE con.confdeltype WHEN 'c' THEN 0 WHEN 'n' THEN 2 WHEN 'd' THEN 4 WHEN 'r' THEN 1 WHEN 'p' THEN 1 WHEN 'a' THEN 3 ELSE NULL END AS delete_rule,
  con.conname AS fk_name, pkic.relname AS pk_name,
  CASE WHEN con.condeferrable AND con.condeferred THEN 5 WHEN con.condeferrable THEN 6 ELSE 7 END AS deferrability
FROM pg_catalog.pg_namespace pkn, pg_catalog.pg_class pkc, pg_catalog.pg_attribute pka,
  pg_catalog.pg_namespace fkn, pg_catalog.pg_class fkc, pg_catalog.pg_attribute fka,
  pg_catalog.pg_constraint con, pg_catalog.generate_series(1, 32) pos(n), pg_catalog.pg_class pkic
WHERE pkn.oid = pkc.relnamespace AND pkc.oid = pka.attrelid AND pka.attnum = con.confkey[pos.n] AND con.confrelid = pkc.oid
  AND fkn.oid = fkc.relnamespace AND fkc.oid = fka.attrelid AND fka.attnum = con.conkey[pos.n] AND con.conrelid = fkc.oid
  AND con.contype = 'f' AND (pkic.relkind = 'i' OR pkic.relkind = 'I') AND pkic.oid = con.conindid
  AND fkn.nspname = 'public' AND fkc.relname = 'orders'
ORDER BY pkn.nspname, pkc.relname, con.conname, pos.n;

-- JDBC: getIndexInfo
SELECT tmp.table_name, tmp.non_unique, tmp.index_name, tmp.type, tmp.ordinal_position,
  trim(both '"' from pg_catalog.pg_get_indexdef(tmp.ci_oid, tmp.ordinal_position, false)) AS column_name,
  CASE tmp.am_name WHEN 'btree' THEN CASE tmp.i_indoption[tmp.ordinal_position - 1] & 1::smallint WHEN 1 THEN 'D' ELSE 'A' END ELSE NULL END AS asc_or_desc,
  tmp.cardinality, tmp.pages, tmp.filter_condition
FROM (
  SELECT ct.relname AS table_name, NOT i.indisunique AS non_unique, ci.relname AS index_name,
    CASE i.indisclustered WHEN true THEN 1 ELSE CASE am.amname WHEN 'hash' THEN 2 ELSE 3 END END AS type,
    generate_series(1, i.indnkeyatts) AS ordinal_position, ci.reltuples AS cardinality, ci.relpages AS pages,
    pg_catalog.pg_get_expr(i.indpred, i.indrelid) AS filter_condition, ci.oid AS ci_oid, i.indoption AS i_indoption,
    am.amname AS am_name
  FROM pg_catalog.pg_class ct
    JOIN pg_catalog.pg_namespace n ON (ct.relnamespace = n.oid)
    JOIN pg_catalog.pg_index i ON (ct.oid = i.indrelid)
    JOIN pg_catalog.pg_class ci ON (ci.oid = i.indexrelid)
    JOIN pg_catalog.pg_am am ON (ci.relam = am.oid)
  WHERE true AND n.nspname = 'public' AND ct.relname = 'users'
) AS tmp
ORDER BY non_unique, type, index_name, ordinal_position;

-- JDBC: the type of an oid
-- $1 = '1043'
SELECT n.nspname = ANY(current_schemas(true)), n.nspname, t.typname
FROM pg_catalog.pg_type t JOIN pg_catalog.pg_namespace n ON t.typnamespace = n.oid WHERE t.oid = $1;

-- JDBC: keywords
SELECT string_agg(word, ',') FROM pg_catalog.pg_get_keywords() WHERE word <> ALL ('{a,abs,absolute,action}'::text[]);

-- JDBC: limits
SELECT setting FROM pg_catalog.pg_settings WHERE name = 'max_index_keys';

-- tokio-postgres: a type
-- $1 = '3802'
SELECT t.typname, t.typtype, t.typelem, r.rngsubtype, t.typbasetype, n.nspname, t.typrelid
FROM pg_catalog.pg_type t
LEFT OUTER JOIN pg_catalog.pg_range r ON r.rngtypid = t.oid
INNER JOIN pg_catalog.pg_namespace n ON t.typnamespace = n.oid
WHERE t.oid = $1;

-- tokio-postgres: labels of an enum
-- $1 = '3802'
SELECT enumlabel FROM pg_catalog.pg_enum WHERE enumtypid = $1 ORDER BY enumsortorder;

-- npgsql: all types
SELECT ns.nspname, t.oid, t.typname, t.typtype, t.typnotnull, t.elemtypoid
FROM (
  SELECT typ.oid, typ.typnamespace, typ.typname, typ.typtype, typ.typrelid, typ.typnotnull, typ.relkind,
    elemtyp.oid AS elemtypoid, elemtyp.typname AS elemtypname, elemcls.relkind AS elemrelkind,
    CASE WHEN elemproc.proname = 'array_recv' THEN 'a' ELSE elemtyp.typtype END AS elemtyptype
  FROM (
    SELECT typ.oid, typnamespace, typname, typrelid, typnotnull, relkind, typelem AS elemoid,
      CASE WHEN proc.proname = 'array_recv' THEN 'a' ELSE typ.typtype END AS typtype,
      CASE WHEN proc.proname = 'array_recv' THEN typ.typelem WHEN typ.typtype = 'r' THEN rngsubtype
        WHEN typ.typtype = 'm' THEN (SELECT rngtypid FROM pg_range WHERE rngmultitypid = typ.oid)
        WHEN typ.typtype = 'd' THEN typ.typbasetype END AS elemtypoid
    FROM pg_type AS typ
      LEFT JOIN pg_class AS cls ON (cls.oid = typ.typrelid)
      LEFT JOIN pg_proc AS proc ON proc.oid = typ.typreceive
      LEFT JOIN pg_range ON (pg_range.rngtypid = typ.oid)
  ) AS typ
    LEFT JOIN pg_type AS elemtyp ON elemtyp.oid = elemtypoid
    LEFT JOIN pg_class AS elemcls ON (elemcls.oid = elemtyp.typrelid)
    LEFT JOIN pg_proc AS elemproc ON elemproc.oid = elemtyp.typreceive
) AS t
JOIN pg_namespace AS ns ON (ns.oid = typnamespace)
WHERE typtype IN ('b', 'r', 'm', 'e', 'd')
  OR (typtype = 'c' AND relkind = 'c')
  OR (typtype = 'p' AND typname IN ('record', 'void', 'unknown'))
  OR (typtype = 'a' AND (elemtyptype IN ('b', 'r', 'm', 'e', 'd') OR (elemtyptype = 'p' AND elemtypname IN ('record', 'void'))
    OR (elemtyptype = 'c' AND elemrelkind = 'c')))
ORDER BY CASE WHEN typtype IN ('b', 'e', 'p') THEN 0 WHEN typtype = 'r' THEN 1 WHEN typtype = 'm' THEN 2
  WHEN typtype = 'c' THEN 3 WHEN typtype = 'd' AND elemtyptype <> 'a' THEN 4 WHEN typtype = 'a' THEN 5
  WHEN typtype = 'd' AND elemtyptype = 'a' THEN 6 END, t.oid;

-- ActiveRecord: columns of a table
SELECT a.attname, format_type(a.atttypid, a.atttypmod), pg_get_expr(d.adbin, d.adrelid), a.attnotnull, a.atttypid,
  a.atttypmod, c.collname, col_description(a.attrelid, a.attnum) AS comment, attidentity AS identity, attgenerated
FROM pg_attribute a
  LEFT JOIN pg_attrdef d ON a.attrelid = d.adrelid AND a.attnum = d.adnum
  LEFT JOIN pg_type t ON a.atttypid = t.oid
  LEFT JOIN pg_collation c ON a.attcollation = c.oid AND a.attcollation <> t.typcollation
WHERE a.attrelid = '"users"'::regclass AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum;

-- ActiveRecord: primary key
SELECT a.attname
FROM (SELECT indrelid, indkey, generate_subscripts(indkey, 1) idx FROM pg_index
      WHERE indrelid = '"orders"'::regclass AND indisprimary) i
  JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[i.idx]
ORDER BY i.idx;

-- ActiveRecord: indexes of a table
SELECT DISTINCT i.relname, d.indisunique, d.indkey, pg_get_indexdef(d.indexrelid),
  pg_catalog.obj_description(i.oid, 'pg_class') AS comment, d.indisvalid,
  ARRAY(SELECT pg_get_indexdef(d.indexrelid, k + 1, true) FROM generate_subscripts(d.indkey, 1) AS k ORDER BY k) AS columns
FROM pg_class t
  INNER JOIN pg_index d ON t.oid = d.indrelid
  INNER JOIN pg_class i ON d.indexrelid = i.oid
  LEFT JOIN pg_namespace n ON n.oid = t.relnamespace
WHERE i.relkind IN ('i', 'I') AND d.indisprimary = 'f' AND t.relname = 'users' AND n.nspname = ANY (current_schemas(false))
ORDER BY i.relname;

-- ActiveRecord: foreign keys of a table
SELECT t2.oid::regclass::text AS to_table, c.conname AS name, c.confupdtype AS on_update, c.confdeltype AS on_delete,
  c.convalidated AS valid, c.condeferrable AS deferrable, c.condeferred AS deferred, c.conkey, c.confkey, c.conrelid, c.confrelid
FROM pg_constraint c
  JOIN pg_class t1 ON c.conrelid = t1.oid
  JOIN pg_class t2 ON c.confrelid = t2.oid
  JOIN pg_namespace n ON c.connamespace = n.oid
WHERE c.contype = 'f' AND t1.relname = 'orders' AND n.nspname = ANY (current_schemas(false))
ORDER BY c.conname;

-- ActiveRecord: types
SELECT t.oid, t.typname, t.typelem, t.typdelim, t.typinput, r.rngsubtype, t.typtype, t.typbasetype
FROM pg_type AS t LEFT JOIN pg_range AS r ON oid = rngtypid
WHERE t.typname IN ('int2', 'int4', 'int8', 'oid', 'float4', 'float8', 'numeric', 'bool', 'timestamp', 'timestamptz', 'date')
ORDER BY t.oid;

-- ActiveRecord: sequence of a serial column
SELECT attr.attname, nsp.nspname, seq.relname
FROM pg_class seq, pg_attribute attr, pg_depend dep, pg_constraint cons, pg_namespace nsp
WHERE seq.oid = dep.objid AND seq.relkind = 'S' AND attr.attrelid = dep.refobjid AND attr.attnum = dep.refobjsubid
  AND attr.attrelid = cons.conrelid AND attr.attnum = cons.conkey[1] AND seq.relnamespace = nsp.oid
  AND cons.contype = 'p' AND dep.classid = 'pg_class'::regclass AND dep.refobjid = '"plans"'::regclass;

-- Prisma: columns
-- $1 = '{public}'
SELECT oid.namespace, info.table_name, info.column_name, format_type(att.atttypid, att.atttypmod) AS formatted_type,
  info.numeric_precision, info.numeric_scale, info.numeric_precision_radix, info.datetime_precision, info.data_type,
  info.udt_schema AS type_schema_name, info.udt_name AS full_data_type, pg_get_expr(attdef.adbin, attdef.adrelid) AS column_default,
  info.is_nullable, info.is_identity, info.character_maximum_length, col_description(att.attrelid, ordinal_position) AS description
FROM information_schema.columns info
  JOIN pg_attribute att ON att.attname = info.column_name
  JOIN (SELECT pg_class.oid, relname, pg_namespace.nspname AS namespace FROM pg_class
        JOIN pg_namespace ON pg_namespace.oid = pg_class.relnamespace AND pg_namespace.nspname = ANY ($1)
        WHERE reltype > 0 OR relkind IN ('r', 'v')) AS oid
    ON oid.oid = att.attrelid AND relname = info.table_name AND namespace = info.table_schema
  LEFT OUTER JOIN pg_attrdef attdef ON attdef.adrelid = att.attrelid AND attdef.adnum = att.attnum AND table_schema = namespace
WHERE table_schema = ANY ($1) AND att.attnum > 0
ORDER BY namespace, table_name, ordinal_position;

-- Prisma: indexes
-- $1 = '{public}'
WITH rawindex AS (
  SELECT indrelid, indexrelid, indisunique, indisprimary, unnest(indkey) AS indkeyid,
    generate_subscripts(indkey, 1) AS indkeyidx, unnest(indclass) AS indclass, unnest(indoption) AS indoption
  FROM pg_index
  WHERE indpred IS NULL AND NOT indisexclusion AND array_position(indkey::int2[], 0::int2) IS NULL
)
SELECT schemainfo.nspname AS namespace, indexinfo.relname AS index_name, tableinfo.relname AS table_name,
  columninfo.attname AS column_name, rawindex.indisunique AS is_unique, rawindex.indisprimary AS is_primary_key,
  rawindex.indkeyidx AS column_index, opclass.opcname AS opclass, opclass.opcdefault, indexaccess.amname AS index_algo,
  CASE rawindex.indoption & 1 WHEN 1 THEN 'DESC' ELSE 'ASC' END AS column_order,
  CASE rawindex.indoption & 2 WHEN 2 THEN true ELSE false END AS nulls_first, pc.condeferrable, pc.condeferred
FROM rawindex
  INNER JOIN pg_class AS tableinfo ON tableinfo.oid = rawindex.indrelid
  INNER JOIN pg_class AS indexinfo ON indexinfo.oid = rawindex.indexrelid
  INNER JOIN pg_namespace AS schemainfo ON schemainfo.oid = tableinfo.relnamespace
  INNER JOIN pg_attribute AS columninfo ON columninfo.attrelid = tableinfo.oid AND columninfo.attnum = rawindex.indkeyid
  INNER JOIN pg_am AS indexaccess ON indexaccess.oid = indexinfo.relam
  LEFT JOIN pg_opclass AS opclass ON opclass.oid = rawindex.indclass
  LEFT JOIN pg_constraint pc ON rawindex.indexrelid = pc.conindid AND pc.contype <> 'f'
WHERE schemainfo.nspname = ANY ($1)
ORDER BY namespace, table_name, index_name, column_index;

-- Prisma: foreign keys
-- $1 = '{public}'
SELECT con.oid AS con_id, att2.attname AS child_column, cl.relname AS parent_table, att.attname AS parent_column,
  con.confdeltype, con.confupdtype, rel_ns.nspname AS referenced_schema_name, conname AS constraint_name, child, parent,
  table_name, namespace, condeferrable, condeferred
FROM (SELECT ns.nspname AS namespace, unnest(con1.conkey) AS parent, unnest(con1.confkey) AS child, cl.relname AS table_name,
        ns.nspname AS schema_name, generate_subscripts(con1.conkey, 1) AS colidx, con1.oid, con1.confrelid, con1.conrelid,
        con1.conname, con1.confdeltype, con1.confupdtype, con1.condeferrable, con1.condeferred
      FROM pg_class cl
        JOIN pg_constraint con1 ON con1.conrelid = cl.oid
        JOIN pg_namespace ns ON cl.relnamespace = ns.oid
      WHERE ns.nspname = ANY ($1) AND con1.contype = 'f' ORDER BY colidx) con
  JOIN pg_attribute att ON att.attrelid = con.confrelid AND att.attnum = con.child
  JOIN pg_class cl ON cl.oid = con.confrelid
  JOIN pg_attribute att2 ON att2.attrelid = con.conrelid AND att2.attnum = con.parent
  JOIN pg_class rel_cl ON con.confrelid = rel_cl.oid
  JOIN pg_namespace rel_ns ON rel_cl.relnamespace = rel_ns.oid
ORDER BY namespace, table_name, constraint_name, con_id, con.colidx;

-- Prisma: version and settings
SELECT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = 'public'), version(), current_setting('server_version_num')::integer AS numeric_version;

-- psql: completion of a table's name
SELECT c.relname, NULL::pg_catalog.text FROM pg_catalog.pg_class c
WHERE c.relkind IN ('r', 'S', 'v', 'm', 'f', 'p') AND (c.relname) LIKE 'us%' AND pg_catalog.pg_table_is_visible(c.oid)
  AND c.relnamespace <> (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = 'pg_catalog')
UNION ALL
SELECT NULL::pg_catalog.text, n.nspname FROM pg_catalog.pg_namespace n
WHERE n.nspname LIKE 'us%' AND n.nspname NOT LIKE E'pg\\_%'
LIMIT 1000;

-- psql: completion of a column's name
SELECT attname FROM pg_catalog.pg_attribute a, pg_catalog.pg_class c, pg_catalog.pg_namespace n
WHERE c.oid = a.attrelid AND c.relnamespace = n.oid AND a.attnum > 0 AND NOT a.attisdropped
  AND (a.attname) LIKE 'e%' AND (c.relname) = 'users' AND pg_catalog.pg_table_is_visible(c.oid)
LIMIT 1000;

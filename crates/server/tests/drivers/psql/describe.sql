-- Everything that psql describes looks as it does on PostgreSQL.
\d
\dt
\dt pe*
\d plans
\d people
\d orders
\d+ bare
\d counted
\d bare
\d nothing
\di
\di orders*
\d orders_placed
\dv
\d grand
\ds
\d tickets
\dn
\du isles
\dp orders
\df now
\dfn pg_catalog.lower
\dT uuid
\do pg_catalog.||
\da pg_catalog.max
\dd
\dD
\dy
\dE
\dm
\dP
\dew
\des
\dRp
\dRs
\ddp
\dg isles
\encoding
\z plans
\d+ counted
\l isles
\conninfo

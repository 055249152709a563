# Builds pg_lookahead with PGXS.  PG_CONFIG picks the server, 15 to 18.
#
# The sources may be elsewhere: make -f PLACE/Makefile, with or without VPATH=PLACE.

# Our own folder: PGXS sets srcdir too late for what is set before it is included.
place := $(patsubst %/,%,$(or $(VPATH),$(dir $(firstword $(MAKEFILE_LIST)))))
ifneq ($(place),.)
VPATH ?= $(place)
endif
# What make finds there it would not make here.  (Not CURDIR: it may have blanks.)
ifneq ($(realpath $(place)),$(realpath .))
ifneq ($(wildcard $(place)/*.so $(place)/src/*/*[.]o),)
$(error the sources were built where they are: run "make clean" in $(place) first)
endif
endif
files = $(patsubst $(place)/%,%,$(sort $(wildcard $(place)/$(1))))

MODULE_big = pg_lookahead
EXTENSION = pg_lookahead
DATA = $(call files,sql/pg_lookahead--*.sql)
PGFILEDESC = "pg_lookahead - reads the blocks a query will need before it needs them"

OBJS = \
	$(WIN32RES) \
	src/by_address.o \
	src/pg_lookahead.o \
	src/settings.o \
	src/hook/executor.o \
	src/hook/explain.o \
	src/hook/heap_am.o \
	src/hook/index_am.o \
	src/hook/relation.o \
	src/hook/utility.o \
	src/extend/extend_stats.o \
	src/extend/file_extend.o \
	src/extend/fill.o \
	src/extend/filled_tables.o \
	src/extend/heap_extend.o \
	src/extend/index_extend.o \
	src/extend/load.o \
	src/extend/load_routed.o \
	src/extend/load_table.o \
	src/extend/space.o \
	src/extend/spare.o \
	src/extend/target_page.o \
	src/extend/wal_ahead.o \
	src/extend/write_combine.o \
	src/source/bitmap_blocks.o \
	src/source/bitmap_scan.o \
	src/source/command_waits.o \
	src/source/deferred.o \
	src/source/index_ahead.o \
	src/source/index_node.o \
	src/source/index_scan.o \
	src/source/leaf_items.o \
	src/source/leaf_scan.o \
	src/source/leaf_walk.o \
	src/source/index_pass.o \
	src/source/maintenance.o \
	src/source/plain.o \
	src/source/plan_walk.o \
	src/source/progress.o \
	src/source/query.o \
	src/source/scout.o \
	src/source/seq_scan.o \
	src/source/seq_worth.o \
	src/source/vacuum_ring.o \
	src/source/vm_runs.o \
	src/window/frontier.o \
	src/window/guard.o \
	src/window/pace.o \
	src/window/pursuit.o \
	src/window/uncounted.o \
	src/window/waits.o \
	src/window/window.o \
	src/method/method.o \
	src/method/advice.o \
	src/method/aio.o \
	src/method/file_advice.o \
	src/method/none.o \
	src/method/worker.o \
	src/service/give_way.o \
	src/service/owner.o \
	src/service/queue.o \
	src/service/resolver.o \
	src/service/ring.o \
	src/service/service.o \
	src/service/status.o \
	src/service/worker.o \
	src/report/counters.o \
	src/report/explain_scans.o \
	src/report/explain_space.o \
	src/report/views.o

# Added to what the command line says.
override PG_CPPFLAGS += -I$(place)/src

REGRESS = $(patsubst test/sql/%.sql,%,$(call files,test/sql/*.sql))
REGRESS_OPTS = --inputdir=$(place)/test --load-extension=pg_lookahead
ISOLATION = $(patsubst test/specs/%.spec,%,$(call files,test/specs/*.spec))
ISOLATION_OPTS = --inputdir=$(place)/test --load-extension=pg_lookahead

PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs)
# The archive needs no server.
ifneq ($(MAKECMDGOALS),dist)
ifeq ($(PGXS),)
$(error "$(PG_CONFIG)" is no pg_config that works: say PG_CONFIG=.../bin/pg_config; of a package, it comes \
	with postgresql-server-dev-N (Debian, Ubuntu) or postgresqlN-devel (Red Hat), N being the server's version)
endif
ifeq ($(wildcard $(PGXS)),)
$(error "$(PG_CONFIG)" names $(PGXS), which is not there: install postgresql-server-dev-N (Debian, Ubuntu) or \
	postgresqlN-devel (Red Hat), N being the version of that server)
endif
include $(PGXS)
endif

# PGXS knows nothing of our headers: rebuild everything when one changes.
$(OBJS) $(OBJS:.o=.bc): $(wildcard $(place)/src/*.h $(place)/src/*/*.h)

# Where the sources are elsewhere nobody has made these.
$(shell mkdir -p $(sort $(dir $(OBJS))))

# The archive that goes to PGXN and to packagers.
EXTVERSION = $(shell sed -n "s/^default_version = '\(.*\)'/\1/p" $(place)/pg_lookahead.control)
dist:
	git -C $(place) archive --format zip --prefix=pg_lookahead-$(EXTVERSION)/ \
		-o "$(CURDIR)/pg_lookahead-$(EXTVERSION).zip" HEAD

.PHONY: dist

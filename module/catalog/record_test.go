package catalog_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/catalog"
)

// record is a version with parts beside its state dict.
type record struct {
	sd    *module.StateDict
	close func() error
}

func (r *record) Content() *module.StateDict { return r.sd }
func (r *record) Close() error               { return r.close() }

// record returns an owned record with the state dict of the probe.
func (p *probe) record(t testing.TB) *record {
	t.Helper()
	sd := p.stateDict(t)
	return &record{sd: sd, close: sd.Close}
}

// The catalog owns a record from the call of PublishRecord on, and closes it exactly once: when the publication fails,
// when the last holder of a superseded or withdrawn version leaves, and when the catalog is closed.
func TestRecordIsClosedOnce(t *testing.T) {
	t.Parallel()
	number := func(n uint64) *uint64 { return &n }
	refuse := errors.New("disk full")
	for what, c := range map[string]struct {
		name    string
		current *uint64
		fail    error // of recording
		fails   error // the expected error
		end     func(b testCatalog, held *catalog.Lease)
	}{
		"bad name":        {name: "..", fails: catalog.ErrName},
		"another current": {name: "m", current: number(7), fails: catalog.ErrChanged},
		"not recorded":    {name: "m", fail: refuse, fails: refuse},
		"withdrawn and released": {name: "m", end: func(b testCatalog, held *catalog.Lease) {
			require.NoError(t, b.Withdraw("m"))
			require.NoError(t, b.Release(held.ID, 1))
		}},
		"superseded and left": {name: "m", end: func(b testCatalog, held *catalog.Lease) {
			b.publish("m")
			require.Equal(t, 1, b.ReleaseHolder(1))
		}},
		"closed": {name: "m", end: func(b testCatalog, _ *catalog.Lease) { require.NoError(t, b.Close()) }},
	} {
		var replaced []catalog.Record
		fail := error(nil)
		b := newTestCatalog(t, catalog.Options{Record: func(c catalog.Change) error {
			replaced = append(replaced, c.Replaced)
			return fail
		}})
		before := &probe{bytes: 8}
		first := before.record(t)
		_, err := b.PublishRecord("m", first, catalog.Origin{}, catalog.PublishOptions{})
		require.NoError(t, err)
		p, closed := &probe{bytes: 8}, 0
		r := p.record(t)
		r.close = func() error { closed++; return r.sd.Close() }
		fail = c.fail
		_, err = b.PublishRecord(c.name, r, catalog.Origin{}, catalog.PublishOptions{Current: c.current})
		require.ErrorIs(t, err, c.fails, what)
		if c.fails == nil {
			held := b.acquire("m", 0, 1)
			require.Same(t, r, held.Record())
			require.Zero(t, closed, what)
			require.Equal(t, []catalog.Record{nil, first}, replaced, what)
			c.end(b, held)
		}
		require.Equal(t, 1, closed, what)
		require.True(t, p.isClosed(), what)
		require.NoError(t, b.Close())
		require.Equal(t, 1, closed, what)
	}
}

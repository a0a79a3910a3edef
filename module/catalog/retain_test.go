package catalog_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/module/catalog"
)

// Versions of 8 bytes each are kept up to the bytes, newest first.
func TestRetentionByBytes(t *testing.T) {
	t.Parallel()
	b := newTestCatalog(t, catalog.Options{Retain: catalog.Retention{Bytes: 20}})
	var probes []*probe
	for range 5 {
		p, _ := b.publish("model")
		probes = append(probes, p)
	}
	for i, p := range probes {
		require.Equal(t, i < 2, p.isClosed(), "version %d: two superseded versions have 16 bytes, three 24", i+1)
	}
}

// Age counts from the publication of the next version. The next expiry is reported, and held versions do not expire.
func TestRetentionByAge(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	b := newTestCatalog(t, catalog.Options{Now: func() time.Time { return now }, Retain: catalog.Retention{Age: time.Minute, Versions: 2}})
	one, _ := b.publish("model")
	require.True(t, b.Expire().IsZero(), "nothing is superseded")
	now = now.Add(time.Hour)
	two, v2 := b.publish("model")
	require.False(t, one.isClosed(), "superseded just now")
	require.Equal(t, now.Add(time.Minute), b.Expire())
	now = now.Add(30 * time.Second)
	b.publish("model")
	held := b.acquire("model", v2, 1)
	superseded := now
	now = now.Add(30 * time.Second)
	require.Equal(t, superseded.Add(time.Minute), b.Expire(), "the other superseded version is held, but may be released before")
	require.True(t, one.isClosed())
	now = now.Add(time.Hour)
	require.True(t, b.Expire().IsZero())
	require.False(t, two.isClosed())
	require.NoError(t, b.Release(held.ID, 1))
	require.True(t, two.isClosed(), "its age is over when the lease ends")
}

// A publication sets the retention of its name until it is withdrawn.
func TestRetentionOfAName(t *testing.T) {
	t.Parallel()
	var recorded []*catalog.Retention
	b := newTestCatalog(t, catalog.Options{Record: func(c catalog.Change) error {
		recorded = append(recorded, c.Retain)
		return nil
	}})
	one, two := &probe{bytes: 8}, &probe{bytes: 8}
	retain := catalog.Retention{Versions: 1}
	_, err := b.PublishRecord("model", one.record(t), catalog.Origin{}, catalog.PublishOptions{Retain: &retain})
	require.NoError(t, err)
	_, err = b.PublishRecord("model", two.record(t), catalog.Origin{}, catalog.PublishOptions{After: 6})
	require.NoError(t, err)
	require.False(t, one.isClosed())
	other, _ := b.publish("other")
	b.publish("other")
	require.True(t, other.isClosed(), "the name has the retention of the catalog")
	require.Equal(t, []*catalog.Retention{&retain, &retain, nil, nil}, recorded)

	require.NoError(t, b.Withdraw("model"))
	three, v := b.publish("model")
	require.EqualValues(t, 8, v)
	b.publish("model")
	require.True(t, three.isClosed())
	require.Error(t, catalog.Retention{Age: -1}.Check())
	require.NoError(t, retain.Check())
}

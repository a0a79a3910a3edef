package keeper_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint"
)

// numbers returns the versions of a name, newest first, and the total size of the superseded ones.
func numbers(t testing.TB, u user, name string) (versions []uint64, superseded int64) {
	t.Helper()
	info, err := u.Info(t.Context(), name)
	require.NoError(t, err)
	for i, v := range info.Versions {
		versions = append(versions, v.Version)
		if i > 0 {
			superseded += v.Bytes
		}
	}
	return versions, superseded
}

// Limits by size and by age apply to the versions of one owner and of the next one. The keeper holds what is retained, and
// a retained version can be published again.
func TestRetentionBySizeAndAge(t *testing.T) {
	t.Parallel()
	p := start(t, "", "1s")
	u := newUser(t, p)
	store, err := connectKeeper(keeperOf(p.Socket, nil))
	require.NoError(t, err)
	defer store.Close()
	publish := func(name string, value int, retain endpoint.Retention) {
		sd, err := u.model(value)
		require.NoError(t, err)
		defer sd.Close()
		_, err = u.Publish(t.Context(), name, sd, endpoint.PublishOptions{Retain: &retain})
		require.NoError(t, err)
	}
	publish("size", 1, endpoint.Retention{})
	info, err := u.Info(t.Context(), "size")
	require.NoError(t, err)
	limit := 2*info.Versions[0].Bytes + 1
	for i := range 5 {
		publish("size", i+2, endpoint.Retention{Bytes: limit})
	}
	versions, bytes := numbers(t, u, "size")
	require.Equal(t, []uint64{6, 5, 4}, versions)
	require.LessOrEqual(t, bytes, limit)

	const age = 3 * time.Second
	for i := range 3 {
		publish("age", i+1, endpoint.Retention{Age: age})
	}
	versions, _ = numbers(t, u, "age")
	require.Equal(t, []uint64{3, 2, 1}, versions)

	restart(t, p, u)
	rolled, err := u.Rollback(t.Context(), "size", 5)
	require.NoError(t, err)
	require.Equal(t, uint64(7), rolled)
	require.Equal(t, 5, value(t, u.acquire("size", 0).StateDict()))
	require.Eventually(t, func() bool {
		size, bytes := numbers(t, u, "size")
		old, _ := numbers(t, u, "age")
		return len(size) == 3 && bytes <= limit && len(old) == 1
	}, 40*time.Second, 50*time.Millisecond, "after the readers of the previous owner had time to renew their leases")
	require.Eventually(t, func() bool { return len(contents(t, store)) == 5 }, 20*time.Second, 50*time.Millisecond, "a journal and four versions")
}

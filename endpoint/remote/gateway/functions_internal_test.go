package gateway

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

// localFunctions returns a link without an owner, for functions of this process.
func localFunctions(t *testing.T) (*ownerLink, *endpoint.Registry) {
	t.Helper()
	dev, err := host.Open()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	registry := endpoint.NewRegistry()
	o, err := attachOwner(&Config{Owner: Off}, []driver.Device{dev}, registry, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, o.close()) })
	return o, registry
}

func register(t *testing.T, registry *endpoint.Registry, name string) {
	t.Helper()
	require.NoError(t, endpoint.Register(registry, name, func(context.Context, int) (int, error) { return 0, nil }))
}

// age makes the cached list older.
func age(o *ownerLink, d time.Duration) *Functions {
	newest := o.functions.newest.Load()
	o.functions.newest.Store(&listedFunctions{newest.Functions, newest.began.Add(-d)})
	return newest.Functions
}

// The functions keep their pointer while nothing changes. A fresh list answers without another, an older one is renewed in the
// background, and a stale one before the request.
func TestFunctionsAreListedOnce(t *testing.T) {
	o, registry := localFunctions(t)
	register(t, registry, "one")
	first, err := o.Functions(t.Context())
	require.NoError(t, err)
	require.NotNil(t, first.Find("one"))
	again, err := o.ListFunctions(t.Context())
	require.NoError(t, err)
	require.Same(t, first, again)

	register(t, registry, "two")
	o.functions.newest.Store(&listedFunctions{first, time.Now().Add(time.Hour)}) // fresh for as long as this step takes
	fresh, err := o.Functions(t.Context())
	require.NoError(t, err)
	require.Same(t, first, fresh)
	found, _, err := FindFunction(t.Context(), o, "one")
	require.NoError(t, err)
	require.NotNil(t, found)
	require.Same(t, first, o.functions.newest.Load().Functions)

	o.functions.newest.Store(&listedFunctions{first, time.Now()})
	age(o, functionsStale)
	stale, err := o.Functions(t.Context())
	require.NoError(t, err)
	require.NotNil(t, stale.Find("two"))

	register(t, registry, "three")
	o.renewFunctions()
	for o.functions.newest.Load().Find("three") == nil { // the test ends with the timeout of the package
		time.Sleep(time.Millisecond)
	}
	for o.functions.renews.Load() {
		time.Sleep(time.Millisecond)
	}
}

// A name that is not in the list is looked up before it is unknown, and an unknown name returns an error without an owner.
func TestFunctionsThatAreNew(t *testing.T) {
	o, registry := localFunctions(t)
	register(t, registry, "one")
	_, err := o.Functions(t.Context())
	require.NoError(t, err)
	register(t, registry, "two")
	found, _, err := FindFunction(t.Context(), o, "two")
	require.NoError(t, err)
	require.NotNil(t, found)
	_, _, err = FindFunction(t.Context(), o, "none")
	require.ErrorIs(t, err, endpoint.ErrUnavailable)
}

// Requests that wait for a list share one, and a request that is cancelled does not wait.
func TestListsAreShared(t *testing.T) {
	o, registry := localFunctions(t)
	register(t, registry, "one")
	o.functions.listing <- struct{}{} // a list is being made
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := o.ListFunctions(cancelled)
	require.ErrorIs(t, err, context.Canceled)
	var running sync.WaitGroup
	for range 16 {
		running.Go(func() {
			f, err := o.ListFunctions(t.Context())
			if err != nil || f.Find("one") == nil {
				t.Errorf("%v, %v", f, err)
			}
		})
	}
	<-o.functions.listing
	running.Wait()
}

package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// ranks is an owner in this process with clients that publish and read parts.
type ranks struct {
	*endpoint.Server
	t   *testing.T
	dev driver.Device
}

func newRanks(t *testing.T, opts endpoint.ServerOptions) *ranks {
	t.Helper()
	fixture.RequireFeature(t, "parts")
	drivertest.Leaks(t)
	opts.Logger = fixture.Discard()
	return &ranks{fixture.Serve(t, opts), t, fixture.Device(t)}
}

// client returns a client in its own session.
func (r *ranks) client() *endpoint.Client {
	r.t.Helper()
	c, err := endpoint.Dial(r.t.Context(), endpoint.ClientOptions{Socket: r.Socket(), OverSocket: true, Devices: []driver.Device{r.dev}})
	require.NoError(r.t, err)
	r.t.Cleanup(func() { c.Close() })
	return c
}

// partPublisher publishes state dicts: a client or the server itself.
type partPublisher interface {
	Publish(ctx context.Context, name string, sd *module.StateDict, opts endpoint.PublishOptions) (uint64, error)
}

// outcome is the result of a publication.
type outcome struct {
	version uint64
	err     error
}

// begin publishes a part with one value. The result is received from the channel.
func (r *ranks) begin(ctx context.Context, by partPublisher, name string, value float32, opts endpoint.PublishOptions) <-chan outcome {
	done := make(chan outcome, 1)
	sd := weights(r.t, r.dev, value)
	go func() {
		version, err := by.Publish(ctx, name, sd, opts)
		done <- outcome{version, errors.Join(err, sd.Close())}
	}()
	return done
}

// publish publishes all parts of a version with the values base, base+1 and so on, and returns its number.
func (r *ranks) publish(name string, of int, base float32, opts endpoint.PublishOptions) uint64 {
	r.t.Helper()
	var all []<-chan outcome
	for i := range of {
		opts.Part = endpoint.Part{Index: i, Of: of}
		all = append(all, r.begin(r.t.Context(), r.client(), name, base+float32(i), opts))
	}
	var versions []uint64
	for _, done := range all {
		got := <-done
		require.NoError(r.t, got.err)
		versions = append(versions, got.version)
	}
	require.Len(r.t, slices.Compact(versions), 1, "all parts have one number")
	return versions[0]
}

// incomplete returns the state of the incomplete version of a name; nil if there is none.
func (r *ranks) incomplete(name string) *endpoint.IncompleteInfo {
	for _, m := range fixture.ListOf(r.Server) {
		if m.Name == name {
			return m.Incomplete
		}
	}
	return nil
}

// waiting waits until the parts with these indexes are published and wait for others.
func (r *ranks) waiting(name string, indexes ...int) {
	r.t.Helper()
	proctest.Eventually(r.t, fixture.WaitLimit, fmt.Sprint(name, " waits with the parts ", indexes), func() bool {
		v := r.incomplete(name)
		return v == nil && len(indexes) == 0 || v != nil && slices.Equal(v.Parts, indexes)
	})
}

// charged requires that clients are charged for a number of versions.
func (r *ranks) charged(versions int64) {
	r.t.Helper()
	proctest.Eventually(r.t, fixture.WaitLimit, fmt.Sprint(versions, " versions are charged"), func() bool {
		return fixture.LimitUse(r.t, r.Server, "versions").Used == versions
	})
}

// value returns the value of a state dict of weights.
func (r *ranks) value(sd *module.StateDict) (float32, error) {
	w, ok := sd.Get("w")
	if !ok {
		return 0, endpoint.ErrNotFound
	}
	return tensor.Item[float32](w)
}

// read returns the version and the value of a part.
func (r *ranks) read(c *endpoint.Client, name string, opts endpoint.AcquireOptions) (uint64, float32, error) {
	h, err := c.Acquire(r.t.Context(), name, opts)
	if err != nil {
		return 0, 0, err
	}
	value, err := r.value(h.StateDict())
	return h.Version(), value, errors.Join(err, h.Close())
}

// A version of several parts becomes current for all parts at once. Until then readers and followers have the version
// before it, and nothing of the new one can be acquired.
func TestPartsBecomeCurrentTogether(t *testing.T) {
	r := newRanks(t, endpoint.ServerOptions{Retain: endpoint.Retention{Versions: 1}})
	reader := r.client()
	require.EqualValues(t, 1, r.publish("m", 3, 10, endpoint.PublishOptions{}))
	var followers []*endpoint.Follower[endpoint.ModelVersion]
	for i := range 3 {
		f, err := r.client().Follow(t.Context(), "m", endpoint.FollowOptions{Part: endpoint.Part{Index: i, Of: 3}})
		require.NoError(t, err)
		defer f.Close()
		followers = append(followers, f)
	}
	used := func(version uint64, base float32) {
		t.Helper()
		for i, f := range followers {
			require.NoError(t, f.Use(func(v endpoint.ModelVersion) error {
				require.Equal(t, version, v.Version)
				require.Equal(t, "m", v.Name)
				got, err := r.value(v.StateDict)
				require.Equal(t, base+float32(i), got)
				return err
			}))
		}
	}
	used(1, 10)

	var done []<-chan outcome
	for _, i := range []int{2, 0} {
		done = append(done, r.begin(t.Context(), r.client(), "m", 20+float32(i), endpoint.PublishOptions{Part: endpoint.Part{Index: i, Of: 3, Key: "step 2"}}))
	}
	r.waiting("m", 0, 2)
	v := r.incomplete("m")
	require.Equal(t, []any{3, int64(8), "step 2"}, []any{v.Of, v.Bytes, v.Key})
	require.True(t, v.EndsAt.After(v.StartedAt))
	r.charged(5)
	for i := range 3 {
		version, value, err := r.read(reader, "m", endpoint.AcquireOptions{Part: endpoint.Part{Index: i, Of: 3}})
		require.NoError(t, err)
		require.Equal(t, []any{uint64(1), 10 + float32(i)}, []any{version, value})
	}
	_, _, err := r.read(reader, "m", endpoint.AcquireOptions{Version: 2})
	require.ErrorIs(t, err, endpoint.ErrNotFound)
	used(1, 10)

	// the owner's process may publish a part too
	done = append(done, r.begin(t.Context(), r.Server, "m", 21, endpoint.PublishOptions{Part: endpoint.Part{Index: 1, Of: 3, Key: "step 2"}}))
	for _, d := range done {
		require.Equal(t, outcome{version: 2}, <-d)
	}
	for _, f := range followers {
		proctest.Eventually(t, fixture.WaitLimit, "the follower has version 2", func() bool { return f.Status().Version == 2 })
	}
	used(2, 20)
	require.Nil(t, r.incomplete("m"))
	model := fixture.ListOf(r.Server)[0]
	require.Equal(t, []int{3, 3}, []int{model.Versions[0].Parts, model.Versions[1].Parts})
	require.Len(t, model.Versions[0].Holders, 3)

	// the whole version has the names of all parts
	h, err := reader.Acquire(t.Context(), "m", endpoint.AcquireOptions{})
	require.NoError(t, err)
	require.Equal(t, []string{"rank0/w", "rank1/w", "rank2/w"}, h.StateDict().Names())
	require.NoError(t, h.Close())

	version, err := reader.Rollback(t.Context(), "m", 0)
	require.NoError(t, err)
	require.EqualValues(t, 3, version)
	for _, f := range followers {
		proctest.Eventually(t, fixture.WaitLimit, "the follower has version 3", func() bool { return f.Status().Version == 3 })
	}
	used(3, 10)
	require.NoError(t, reader.Withdraw(t.Context(), "m"))
	used(3, 10)
	for _, f := range followers {
		require.NoError(t, f.Close())
	}
	r.charged(0)
}

// Every part that does not fit is refused with the reason, and changes nothing for the parts that wait.
func TestPartsThatDoNotFit(t *testing.T) {
	r := newRanks(t, endpoint.ServerOptions{})
	require.EqualValues(t, 1, r.publish("group", 2, 10, endpoint.PublishOptions{}))
	c := r.client()
	publish := func(name string, opts endpoint.PublishOptions) error {
		return (<-r.begin(t.Context(), c, name, 1, opts)).err
	}
	require.NoError(t, publish("plain", endpoint.PublishOptions{}))
	one := uint64(1)
	first := r.begin(t.Context(), r.client(), "open", 20, endpoint.PublishOptions{Part: endpoint.Part{Index: 1, Of: 2, Key: "k"}})
	r.waiting("open", 1)
	for name, refused := range map[string]struct {
		name string
		opts endpoint.PublishOptions
		want error
		text string
	}{
		"index too large":          {"new", endpoint.PublishOptions{Part: endpoint.Part{Index: 2, Of: 2}}, endpoint.ErrPart, "part 2 of 2"},
		"negative index":           {"new", endpoint.PublishOptions{Part: endpoint.Part{Index: -1, Of: 2}}, endpoint.ErrPart, "part -1"},
		"no number of parts":       {"new", endpoint.PublishOptions{Part: endpoint.Part{Index: 1}}, endpoint.ErrPart, "of 0"},
		"a key without parts":      {"new", endpoint.PublishOptions{Part: endpoint.Part{Key: "k"}}, endpoint.ErrPart, "of 0"},
		"too many parts":           {"new", endpoint.PublishOptions{Part: endpoint.Part{Of: 1025}}, endpoint.ErrPart, "1024 parts at most"},
		"a long key":               {"new", endpoint.PublishOptions{Part: endpoint.Part{Of: 2, Key: fmt.Sprintf("%257d", 1)}}, endpoint.ErrPart, "256 bytes"},
		"a bad name":               {"a/../b", endpoint.PublishOptions{Part: endpoint.Part{Of: 2}}, endpoint.ErrInvalid, ".."},
		"another number of parts":  {"open", endpoint.PublishOptions{Part: endpoint.Part{Of: 3, Key: "k"}}, endpoint.ErrPart, "are of 2, not of 3"},
		"another key":              {"open", endpoint.PublishOptions{Part: endpoint.Part{Of: 2, Key: "j"}}, endpoint.ErrPart, `the key "k", not "j"`},
		"an index twice":           {"open", endpoint.PublishOptions{Part: endpoint.Part{Index: 1, Of: 2, Key: "k"}}, endpoint.ErrPart, "published already"},
		"another condition":        {"open", endpoint.PublishOptions{Part: endpoint.Part{Of: 2, Key: "k"}, Current: &one}, endpoint.ErrPart, "another current version"},
		"a whole after parts":      {"group", endpoint.PublishOptions{}, endpoint.ErrPart, "made of 2 parts"},
		"parts after a whole":      {"plain", endpoint.PublishOptions{Part: endpoint.Part{Of: 2}}, endpoint.ErrPart, "not made of parts"},
		"parts after other parts":  {"group", endpoint.PublishOptions{Part: endpoint.Part{Of: 3}}, endpoint.ErrPart, "made of 2 parts, not 3"},
		"a number that is too big": {"new", endpoint.PublishOptions{Part: endpoint.Part{Of: 2}, After: 1 << 60}, endpoint.ErrInvalid, "2⁵³"},
	} {
		t.Run(name, func(t *testing.T) {
			err := publish(refused.name, refused.opts)
			require.ErrorIs(t, err, refused.want)
			require.ErrorContains(t, err, refused.text)
			if refused.name == "new" {
				require.Nil(t, r.incomplete("new"))
			}
		})
	}
	sd := module.NewStateDict()
	_, err := c.Publish(t.Context(), "new", sd, endpoint.PublishOptions{Part: endpoint.Part{Of: 2}})
	require.ErrorIs(t, err, endpoint.ErrPart, "a part without tensors")
	for name, ask := range map[string]struct {
		name string
		part endpoint.Part
		text string
	}{
		"a part of a whole":    {"plain", endpoint.Part{Of: 2}, "not made of parts"},
		"fewer parts":          {"group", endpoint.Part{Of: 1}, "made of 2 parts, not 1"},
		"more parts":           {"group", endpoint.Part{Of: 3}, "made of 2 parts, not 3"},
		"an index that is big": {"group", endpoint.Part{Index: 2, Of: 2}, "part 2 of 2"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := r.read(c, ask.name, endpoint.AcquireOptions{Part: ask.part})
			require.ErrorIs(t, err, endpoint.ErrPart)
			require.ErrorContains(t, err, ask.text)
		})
	}
	for _, m := range fixture.ListOf(r.Server) {
		for _, v := range m.Versions {
			require.Empty(t, v.Holders, "a refused reader holds nothing of %s", m.Name)
		}
	}
	require.Equal(t, []int{1}, r.incomplete("open").Parts, "the part that waits is not affected")
	require.Equal(t, outcome{version: 1}, <-r.begin(t.Context(), c, "open", 19, endpoint.PublishOptions{Part: endpoint.Part{Of: 2, Key: "k"}}))
	require.Equal(t, outcome{version: 1}, <-first)
}

// If a version does not become complete, its publishers learn why, and their memory and charges are released.
func TestIncompleteVersionsEnd(t *testing.T) {
	part := func(i int) endpoint.PublishOptions {
		return endpoint.PublishOptions{Part: endpoint.Part{Index: i, Of: 4}}
	}
	begin := func(r *ranks) []<-chan outcome {
		all := []<-chan outcome{r.begin(t.Context(), r.client(), "m", 0, part(0)), r.begin(t.Context(), r.client(), "m", 2, part(2))}
		return all
	}
	t.Run("expired", func(t *testing.T) {
		r := newRanks(t, endpoint.ServerOptions{Limits: endpoint.Limits{PartTime: 10 * time.Millisecond}})
		for _, done := range begin(r) {
			got := <-done
			require.ErrorIs(t, got.err, endpoint.ErrIncomplete)
			require.NotErrorIs(t, got.err, context.DeadlineExceeded)
			require.ErrorContains(t, got.err, "has expired after 10ms without parts")
		}
		r.charged(0)
		require.Nil(t, r.incomplete("m"))
	})
	t.Run("withdrawn", func(t *testing.T) {
		r := newRanks(t, endpoint.ServerOptions{})
		all := begin(r)
		r.waiting("m", 0, 2)
		require.NoError(t, r.client().Withdraw(t.Context(), "m"))
		for _, done := range all {
			got := <-done
			require.ErrorIs(t, got.err, endpoint.ErrIncomplete)
			require.ErrorContains(t, got.err, "withdrawn")
		}
		require.ErrorIs(t, r.client().Withdraw(t.Context(), "m"), endpoint.ErrNotFound)
		r.charged(0)
	})
	t.Run("publishers leave", func(t *testing.T) {
		r := newRanks(t, endpoint.ServerOptions{})
		ctx, cancel := context.WithCancel(t.Context())
		cancelled := r.begin(ctx, r.client(), "m", 0, part(0))
		gone := r.client()
		closed := r.begin(t.Context(), gone, "m", 2, part(2))
		r.waiting("m", 0, 2)
		cancel()
		require.ErrorIs(t, (<-cancelled).err, context.Canceled)
		r.waiting("m", 2)
		require.NoError(t, gone.Close())
		require.ErrorIs(t, (<-closed).err, endpoint.ErrUnavailable)
		r.waiting("m")
		r.charged(0)
		require.EqualValues(t, 1, r.publish("m", 4, 5, endpoint.PublishOptions{}), "the parts can be published again")
	})
	t.Run("condition", func(t *testing.T) {
		r := newRanks(t, endpoint.ServerOptions{})
		var all []<-chan outcome
		none := uint64(7)
		for i := range 2 {
			all = append(all, r.begin(t.Context(), r.client(), "m", 0, endpoint.PublishOptions{Current: &none, Part: endpoint.Part{Index: i, Of: 2}}))
		}
		for _, done := range all {
			require.ErrorIs(t, (<-done).err, endpoint.ErrChanged)
		}
		r.charged(0)
	})
	t.Run("a whole version is published first", func(t *testing.T) {
		r := newRanks(t, endpoint.ServerOptions{})
		first := r.begin(t.Context(), r.client(), "m", 0, endpoint.PublishOptions{Part: endpoint.Part{Index: 0, Of: 2}})
		r.waiting("m", 0)
		require.Equal(t, outcome{version: 1}, <-r.begin(t.Context(), r.client(), "m", 9, endpoint.PublishOptions{}))
		last := <-r.begin(t.Context(), r.client(), "m", 1, endpoint.PublishOptions{Part: endpoint.Part{Index: 1, Of: 2}})
		require.ErrorIs(t, last.err, endpoint.ErrPart)
		require.NoError(t, r.client().Withdraw(t.Context(), "m"))
		require.ErrorIs(t, (<-first).err, endpoint.ErrIncomplete)
		r.charged(0)
	})
	t.Run("the owner ends", func(t *testing.T) {
		r := newRanks(t, endpoint.ServerOptions{})
		all := append(begin(r), r.begin(t.Context(), r.Server, "m", 1, part(1)))
		r.waiting("m", 0, 1, 2)
		require.NoError(t, r.Close())
		for _, done := range all {
			require.ErrorIs(t, (<-done).err, endpoint.ErrUnavailable)
		}
	})
}

// The parts of a version are charged to their publishers, also before it is complete.
func TestPartsAreCharged(t *testing.T) {
	limit := endpoint.PublishLimits{Versions: 1, Storages: 8, Bytes: 1 << 20, ManifestBytes: 1 << 20}
	r := newRanks(t, endpoint.ServerOptions{Limits: endpoint.Limits{Publish: limit}})
	one := r.client()
	first := r.begin(t.Context(), one, "m", 1, endpoint.PublishOptions{Part: endpoint.Part{Of: 2}})
	r.waiting("m", 0)
	require.ErrorIs(t, (<-r.begin(t.Context(), one, "other", 1, endpoint.PublishOptions{})).err, endpoint.ErrLimit)
	require.ErrorIs(t, (<-r.begin(t.Context(), one, "m", 1, endpoint.PublishOptions{Part: endpoint.Part{Index: 1, Of: 2}})).err, endpoint.ErrLimit)
	require.NoError(t, (<-r.begin(t.Context(), r.client(), "m", 2, endpoint.PublishOptions{Part: endpoint.Part{Index: 1, Of: 2}})).err)
	require.NoError(t, (<-first).err)
	r.charged(2)
	require.ErrorIs(t, (<-r.begin(t.Context(), one, "other", 1, endpoint.PublishOptions{})).err, endpoint.ErrLimit, "a part of a version is a version of its publisher")
	require.NoError(t, one.Withdraw(t.Context(), "m"))
	r.charged(0)
}

// A digest attributes an answer to the whole version, also for the reader of a part: that of the publishers, or of the
// owner. Both are the digest of the whole state dict.
func TestPartsHaveTheDigestOfTheWhole(t *testing.T) {
	for _, claimed := range []bool{false, true} {
		for _, owner := range []bool{false, true} {
			t.Run(fmt.Sprint("claimed ", claimed, ", owner ", owner), func(t *testing.T) {
				r := newRanks(t, endpoint.ServerOptions{})
				var all []<-chan outcome
				for i := range 2 {
					c, sd := r.client(), weights(t, r.dev, float32(i))
					if claimed {
						require.NoError(t, module.AddDigests(t.Context(), sd, 1))
					}
					done := make(chan outcome, 1)
					all = append(all, done)
					go func() {
						version, err := c.Publish(t.Context(), "m", sd, endpoint.PublishOptions{Digests: owner, Part: endpoint.Part{Index: i, Of: 2}})
						done <- outcome{version, errors.Join(err, sd.Close())}
					}()
				}
				for _, done := range all {
					require.NoError(t, (<-done).err)
				}
				c := r.client()
				h, err := c.Acquire(t.Context(), "m", endpoint.AcquireOptions{})
				require.NoError(t, err)
				defer h.Close()
				whole, err := module.StateDictDigest(t.Context(), h.StateDict(), 1)
				require.NoError(t, err)
				var want module.Digest
				if claimed || owner {
					want = whole
				}
				if owner {
					got, err := c.Digests(t.Context(), "m", 0)
					require.NoError(t, err)
					require.Equal(t, whole, got.Whole)
					require.Len(t, got.Tensors, 2)
				}
				for i := range 2 {
					part := endpoint.Part{Index: i, Of: 2}
					f, err := r.client().Follow(t.Context(), "m", endpoint.FollowOptions{Part: part, OwnerDigest: true})
					require.NoError(t, err)
					require.NoError(t, f.Use(func(v endpoint.ModelVersion) error { require.Equal(t, want, v.Digest); return nil }))
					require.NoError(t, f.Close())
					own := weights(t, r.dev, float32(i))
					digest, err := module.StateDictDigest(t.Context(), own, 1)
					require.NoError(t, err)
					require.NoError(t, own.Close())
					opts := endpoint.AcquireOptions{Part: part, Digest: digest, OwnerDigest: owner}
					_, _, err = r.read(c, "m", opts)
					require.NoError(t, err)
					opts.Digest[0] ^= 1
					_, _, err = r.read(c, "m", opts)
					require.ErrorIs(t, err, module.ErrDigest)
				}
			})
		}
	}
}

package server

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/catalog"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// heldDigests makes the server's digests wait for the test. The test sends the result of one version to the channel.
func (s *modelServer) heldDigests() chan error {
	results := make(chan error)
	s.Models.Digest = func(ctx context.Context, sd *module.StateDict, workers int) (map[string]module.Digest, error) {
		select {
		case err := <-results:
			if err != nil {
				return nil, err
			}
			return module.Digests(ctx, sd, workers)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return results
}

func (s *modelServer) publishWithDigests(t *testing.T, name string) (version uint64, sd *module.StateDict) {
	t.Helper()
	sd = s.weights(t, 64)
	version, err := s.Models.Publish(t.Context(), Publication{Name: name, StateDict: sd, Digests: true})
	require.NoError(t, err)
	return version, sd
}

// job returns the job of a state dict in the catalog; nil for none.
func (s *modelServer) job(t *testing.T, sd *module.StateDict) (job *digestJob) {
	t.Helper()
	require.NoError(t, s.Models.Catalog.Versions(func(v catalog.Version) error {
		if r := recordOf(v.Record); r.StateDict == sd {
			job = r.digests
		}
		return nil
	}))
	return job
}

// digestState returns the state of a version's digests as clients see it.
func (s *modelServer) digestState(t *testing.T, name string, version uint64) message.DigestState {
	t.Helper()
	for _, model := range s.Models.List().Models {
		for _, v := range model.Versions {
			if model.Name == name && v.Version == version {
				return v.DigestState
			}
		}
	}
	require.Fail(t, "no such version")
	return 0
}

func TestDigestsAreComputed(t *testing.T) {
	t.Parallel()
	s := newModelServer(t, catalog.Retention{Versions: 5})
	results := s.heldDigests()
	first, sd := s.publishWithDigests(t, "m")
	require.Equal(t, message.DigestPending, s.digestState(t, "m", first))
	job := s.job(t, sd)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, job.wait(ended), context.Canceled)
	require.Nil(t, job.computed())
	results <- nil
	require.NoError(t, job.wait(t.Context()))
	require.Len(t, job.computed(), len(module.Digest{}))
	require.Equal(t, message.DigestComputed, s.digestState(t, "m", first))
	var out message.Digested
	require.NoError(t, s.ask(t, message.OpDigests, message.Digests{Name: "m"}, &out))
	require.Equal(t, job.whole[:], out.Whole)
	require.Zero(t, s.held(t, "m"), "a request for digests keeps no lease")

	second, sd := s.publishWithDigests(t, "m")
	results <- errors.New("bad memory")
	require.ErrorContains(t, s.job(t, sd).wait(t.Context()), "bad memory")
	require.Equal(t, message.DigestFailed, s.digestState(t, "m", second))
	require.ErrorContains(t, s.ask(t, message.OpDigests, message.Digests{Name: "m"}, &out), "bad memory")

	s.publish(t, "plain")
	require.ErrorContains(t, s.ask(t, message.OpDigests, message.Digests{Name: "plain"}, &out), "published without digests")
	require.ErrorIs(t, s.ask(t, message.OpDigests, message.Digests{Name: "none"}, &out), status.ErrNotFound)
}

// Digests of versions that are freed are not computed, whether they wait or run. Versions are computed in order.
func TestDigestsOfFreedVersions(t *testing.T) {
	t.Parallel()
	s := newModelServer(t, catalog.Retention{})
	results := s.heldDigests()
	_, running := s.publishWithDigests(t, "a")
	_, waiting := s.publishWithDigests(t, "b")
	_, last := s.publishWithDigests(t, "c")
	jobs := []*digestJob{s.job(t, running), s.job(t, waiting), s.job(t, last)}
	require.NoError(t, s.Models.Withdraw(t.Context(), "b", nil))
	require.ErrorIs(t, jobs[1].wait(t.Context()), errVersionGone)
	require.NoError(t, s.Models.Withdraw(t.Context(), "a", nil))
	require.ErrorIs(t, jobs[0].wait(t.Context()), errVersionGone)
	require.Nil(t, s.job(t, running))
	results <- nil
	require.NoError(t, jobs[2].wait(t.Context()))
}

// A server that closes ends all waits for digests, and starts no further ones.
func TestDigestsOfClosedServer(t *testing.T) {
	t.Parallel()
	s := newModelServer(t, catalog.Retention{})
	s.heldDigests()
	_, running := s.publishWithDigests(t, "a")
	_, waiting := s.publishWithDigests(t, "b")
	jobs := []*digestJob{s.job(t, running), s.job(t, waiting)}
	s.Models.StopDigests()
	for _, job := range jobs {
		require.ErrorIs(t, job.wait(t.Context()), status.ErrServerClosing)
	}
	_, late := s.publishWithDigests(t, "c")
	require.Nil(t, s.job(t, late))
}

// Digests of an earlier owner are used if they fit the tensors. Otherwise they are computed.
func TestDigestsAreAdopted(t *testing.T) {
	t.Parallel()
	s := newModelServer(t, catalog.Retention{})
	results := s.heldDigests()
	for size, adopted := range map[int]bool{0: false, len(module.Digest{}): true, len(module.Digest{}) - 1: false, 2 * len(module.Digest{}): false} {
		sd := s.weights(t, 64)
		_, err := s.Models.Publish(t.Context(), Publication{Name: "m", StateDict: sd, Digests: true, tensors: make([]byte, size)})
		require.NoError(t, err)
		job := s.job(t, sd)
		if !adopted {
			require.Nil(t, job.computed(), "%d bytes", size)
			results <- nil
		}
		require.NoError(t, job.wait(t.Context()))
		require.Equal(t, adopted, string(job.computed()) == string(make([]byte, len(module.Digest{}))), "%d bytes", size)
	}
}

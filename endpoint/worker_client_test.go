package endpoint_test

import (
	"context"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
)

// drafted is a version under a key that is written in place.
type drafted struct {
	Key   string
	Model fixture.Model
}

// drafts holds the uncommitted versions of this process by key.
var drafts = map[string]*endpoint.VersionWriter{}

// draftOp writes a model into a new version, which stays uncommitted.
var draftOp = fixture.NewOp("draft", func(w *fixture.Worker, ctx context.Context, in drafted) (fixture.None, error) {
	from, err := fixture.Synthetic(w.Dev, in.Model)
	if err != nil {
		return fixture.None{}, err
	}
	defer from.Close()
	draft, err := w.Client.NewVersion(ctx, in.Model.Name, specsOf(from))
	if err != nil {
		return fixture.None{}, err
	}
	drafts[in.Key] = draft
	return fixture.None{}, copyAll(draft.StateDict(), from)
})

// draft has a client write a model into a new version, which stays uncommitted.
func draft(c *fixture.Child, key string, m fixture.Model) {
	c.T.Helper()
	draftOp.Must(c.Process, drafted{key, m})
}

// commitOp commits a draft by its key. Its result is the version.
var commitOp = fixture.NewOp("commit", func(w *fixture.Worker, ctx context.Context, key string) (uint64, error) {
	return drafts[key].Commit(ctx, endpoint.PublishOptions{})
})

// commit publishes a draft of a client, and returns the version.
func commit(c *fixture.Child, key string) uint64 {
	c.T.Helper()
	return commitOp.Must(c.Process, key)
}

// abortOp aborts a draft by its key.
var abortOp = fixture.NewOp("abort", func(w *fixture.Worker, _ context.Context, key string) (fixture.None, error) {
	return fixture.None{}, drafts[key].Abort()
})

// abort aborts a draft of a client.
func abort(c *fixture.Child, key string) {
	c.T.Helper()
	abortOp.Must(c.Process, key)
}

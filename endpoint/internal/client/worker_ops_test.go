package client_test

import (
	"context"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
)

// destroyOp has an owner destroy an object by its id.
var destroyOp = fixture.NewOp("destroy", func(w *fixture.Worker, ctx context.Context, id string) (fixture.None, error) {
	_, err := w.Server.Destroy(ctx, id)
	return fixture.None{}, err
})

// destroy has an owner destroy an object.
func destroy(c *fixture.Child, id string) {
	c.T.Helper()
	destroyOp.Must(c.Process, id)
}

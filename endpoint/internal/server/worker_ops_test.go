package server_test

import (
	"context"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
)

// shutdownError is the error of a shutdown that has to fail.
func shutdownError(c *fixture.Child, limit time.Duration) error {
	c.T.Helper()
	return fixture.Failure(c, fixture.ShutdownOp, limit)
}

// closeServerOp closes an owner. Its result is how long that took.
var closeServerOp = fixture.NewOp("close server", func(w *fixture.Worker, _ context.Context, _ fixture.None) (time.Duration, error) {
	return fixture.Timed(w.Server.Close)
})

// closeServer closes an owner, and returns how long that took.
func closeServer(c *fixture.Child) time.Duration {
	c.T.Helper()
	return closeServerOp.Must(c.Process, fixture.None{})
}

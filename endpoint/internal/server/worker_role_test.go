package server_test

import (
	"context"
	"errors"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
)

// crowd is a number of clients of a socket.
type crowd struct {
	Socket  string
	Clients int
}

// dialManyOp connects clients at once, each of which pings and disconnects.
var dialManyOp = fixture.NewOp("dial many", func(_ *fixture.Worker, ctx context.Context, in crowd) (_ fixture.None, err error) {
	errs := make(chan error, in.Clients)
	for range in.Clients {
		go func() {
			c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: in.Socket})
			if err == nil {
				_, err = c.Ping(ctx)
				c.Close()
			}
			errs <- err
		}()
	}
	for range in.Clients {
		err = errors.Join(err, <-errs)
	}
	return fixture.None{}, err
})

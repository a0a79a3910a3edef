package engine_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// claims is an error that claims to be any other.
type claims struct{}

func (claims) Error() string   { return "claims" }
func (claims) Is(error) bool   { return true }
func (claims) Unwrap() []error { return []error{status.ErrLeaving} }

// A function that has run is not run again, whatever its error is: also one that says that another owner is leaving and that
// the request did not run there.
func TestErrorsOfFunctionsAreFinal(t *testing.T) {
	leaving := map[string]error{
		"plain":    status.ErrLeaving,
		"wrapped":  fmt.Errorf("call another owner: %w", status.ErrLeaving),
		"joined":   errors.Join(errors.New("first"), fmt.Errorf("x: %w", status.ErrLeaving)),
		"answered": fmt.Errorf("owner: %w", &message.Error{Code: message.CodeUnavailable, Type: "leaving", Message: "it leaves"}),
		"decoded":  status.DecodeError(&message.Error{Code: message.CodeUnavailable, Type: "leaving", Message: "it leaves"}),
		"claimed":  claims{},
	}
	intercepted := func(err error) endpoint.Interceptor {
		return func(next endpoint.Invoke) endpoint.Invoke {
			return func(ctx context.Context, in *endpoint.Invocation) error {
				if nextErr := next(ctx, in); nextErr != nil || in.Endpoint != "intercepted" || in.Kind == endpoint.KindSubmit {
					return nextErr
				}
				return err
			}
		}
	}
	for name, err := range leaving {
		t.Run(name, func(t *testing.T) {
			var runs atomic.Int64
			r := endpoint.NewRegistry()
			fails := func(context.Context, struct{}) (int, error) { runs.Add(1); return 0, err }
			register(t, r, "call", fails, endpoint.NoCache())
			register(t, r, "cached", fails, endpoint.Cached())
			register(t, r, "serialized", fails, endpoint.NoCache(), endpoint.Serialized())
			register(t, r, "task", fails, endpoint.NoCache(), endpoint.AsTask())
			register(t, r, "intercepted", func(context.Context, struct{}) (int, error) { runs.Add(1); return 1, nil }, endpoint.NoCache())
			for _, items := range []int{0, 2} {
				require.NoError(t, endpoint.RegisterStream(r, fmt.Sprint("stream", items), func(context.Context, struct{}) iter.Seq2[int, error] {
					return func(yield func(int, error) bool) {
						runs.Add(1)
						for i := range items {
							if !yield(i, nil) {
								return
							}
						}
						yield(0, err)
					}
				}))
			}
			ctx, s, c := fixture.ServerAndClient(t, endpoint.ServerOptions{Registry: r, Offers: endpoint.AllowOffers, Interceptors: []endpoint.Interceptor{intercepted(err)}})
			worker := fixture.SocketClient(t, s)
			offered := endpoint.NewRegistry()
			register(t, offered, "offered", fails, endpoint.NoCache())
			_, offerErr := worker.Offer(ctx, offered, endpoint.OfferOptions{})
			require.NoError(t, offerErr)

			for _, from := range []endpoint.Caller{c, s} {
				once := func(what string, do func() error) {
					t.Helper()
					runs.Store(0)
					got := do()
					require.Error(t, got, what)
					require.EqualValues(t, 1, runs.Load(), "%s: %v", what, got)
					require.False(t, status.Refused(got), what)
				}
				for _, endpointName := range []string{"call", "cached", "serialized", "task", "intercepted", "offered"} {
					once(endpointName, func() error { _, err := endpoint.Call[int](ctx, from, endpointName, nil); return err })
					once("submit "+endpointName, func() error {
						task, err := from.Submit(ctx, endpointName, nil)
						require.NoError(t, err)
						_, err = task.Wait(ctx)
						require.NoError(t, err)
						return task.Result(ctx, nil)
					})
				}
				for _, items := range []int{0, 2} {
					once(fmt.Sprint("stream", items), func() (last error) {
						got := 0
						for _, err := range endpoint.Stream[int](ctx, from, fmt.Sprint("stream", items), nil) {
							if last = err; err == nil {
								got++
							}
						}
						require.Equal(t, items, got)
						return last
					})
				}
			}
		})
	}
}

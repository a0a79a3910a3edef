package natslink

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// PutObject stores an object, again and again while servers are away and ctx goes on. body is asked for its bytes at
// each attempt; what it returns is closed.
func PutObject(ctx context.Context, store jetstream.ObjectStore, meta jetstream.ObjectMeta, body func() io.ReadCloser) (*jetstream.ObjectInfo, error) {
	for attempt := 0; ; attempt++ {
		info, err := putOnce(ctx, store, meta, body)
		if err == nil || ctx.Err() != nil || !IsOutage(err) || Pause(ctx, attempt) != nil {
			return info, err
		}
	}
}

func putOnce(ctx context.Context, store jetstream.ObjectStore, meta jetstream.ObjectMeta, body func() io.ReadCloser) (*jetstream.ObjectInfo, error) {
	bytes := body()
	defer bytes.Close()
	return store.Put(withoutDeadline{ctx}, meta, bytes)
}

// openTimeout bounds one attempt of a request that may be lost with a server.
const openTimeout = 5 * time.Second

// Ask makes requests, again and again while servers are away and ctx goes on: the context of each attempt lasts a few
// seconds. What ask does must do no harm when it is done twice.
func Ask(ctx context.Context, ask func(ctx context.Context) error) error {
	for attempt := 0; ; attempt++ {
		try, cancel := context.WithTimeout(ctx, openTimeout)
		err := ask(try)
		cancel()
		if err == nil || ctx.Err() != nil || !IsOutage(err) || Pause(ctx, attempt) != nil {
			return err
		}
	}
}

// GetObject opens an object, again and again while servers are away and ctx goes on. The caller closes the result,
// which ends with ctx.
func GetObject(ctx context.Context, store jetstream.ObjectStore, name string) (jetstream.ObjectResult, error) {
	for attempt := 0; ; attempt++ {
		result, err := getOnce(ctx, store, name)
		if err == nil || ctx.Err() != nil || !IsOutage(err) || Pause(ctx, attempt) != nil {
			return result, err
		}
	}
}

// getOnce is one attempt. The library waits for answers as long as the context lasts, with which the result is read
// too.
func getOnce(ctx context.Context, store jetstream.ObjectStore, name string) (jetstream.ObjectResult, error) {
	reading, cancel := context.WithCancel(ctx)
	late := time.AfterFunc(openTimeout, cancel)
	result, err := store.Get(reading, name)
	inTime := late.Stop()
	if err == nil && inTime {
		return &openObject{result, cancel}, nil
	}
	cancel()
	if err == nil {
		_ = result.Close() // nothing was read from it
	}
	if !inTime && ctx.Err() == nil {
		err = context.DeadlineExceeded
	}
	return nil, err
}

// openObject ends its context when it is closed.
type openObject struct {
	jetstream.ObjectResult
	cancel context.CancelFunc
}

// Close implements io.Closer.
func (o *openObject) Close() error {
	defer o.cancel()
	return o.ObjectResult.Close()
}

// withoutDeadline is a context that does not tell its deadline. Where there is one, the library waits until then for
// the acknowledgement of a piece that was lost with its server; where there is none, for a few seconds.
type withoutDeadline struct{ context.Context }

// Deadline implements context.Context.
func (withoutDeadline) Deadline() (time.Time, bool) { return time.Time{}, false }

// Pause waits before another attempt: 50 ms after the first, doubled up to a second. It returns the error of ctx where
// that ends first.
func Pause(ctx context.Context, attempt int) error {
	timer := time.NewTimer(min(50*time.Millisecond<<min(attempt, 5), time.Second))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// Codes by which a server of a cluster says that it has no leader to ask.
const (
	codeNoCluster = 10008 // "JetStream system temporarily unavailable"
	codeNotLeader = 10009
	codeInProcess = 10158 // "duplicate message id is in process": the attempt before may still succeed
)

// IsOutage reports an error after which the servers may have done what they were asked for, or could not yet: they did
// not answer, or choose a leader.
func IsOutage(err error) bool {
	api := (*jetstream.APIError)(nil)
	if js := jetstream.JetStreamError(nil); !errors.As(err, &api) && errors.As(err, &js) {
		api = js.APIError()
	}
	if api != nil {
		return api.ErrorCode == codeNoCluster || api.ErrorCode == codeNotLeader || api.ErrorCode == codeInProcess
	}
	for _, one := range []error{
		context.DeadlineExceeded, nats.ErrTimeout, nats.ErrNoResponders, jetstream.ErrNoStreamResponse, jetstream.ErrAsyncPublishTimeout, nats.ErrDisconnected,
		nats.ErrReconnectBufExceeded, nats.ErrConnectionReconnecting, nats.ErrStaleConnection,
	} {
		if errors.Is(err, one) {
			return true
		}
	}
	return false
}

package natslink

import (
	"context"
	"errors"
	"fmt"
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

const (
	// openTimeout bounds one attempt of a request that may be lost with a server.
	openTimeout = 5 * time.Second
	// readStall is how long an object that is read may say nothing. The library makes the consumer that it reads by
	// anew after ten seconds without a word, and gives up without a word where that fails.
	readStall = 15 * time.Second
)

// Ask makes requests, again and again while servers are away and ctx goes on: the context of each attempt lasts a few
// seconds, since a request that is lost with a server is never answered. What ask does must do no harm when it is done
// twice.
func Ask(ctx context.Context, ask func(ctx context.Context) error) error {
	return AskFor(ctx, openTimeout, ask)
}

// AskFor is [Ask] with the time that one attempt may last.
func AskFor(ctx context.Context, attempts time.Duration, ask func(ctx context.Context) error) error {
	for attempt := 0; ; attempt++ {
		try, cancel := context.WithTimeout(ctx, attempts)
		err := ask(try)
		cancel()
		if err == nil || !IsOutage(err) {
			return err
		}
		if ctx.Err() != nil || Pause(ctx, attempt) != nil {
			return fmt.Errorf("the servers of NATS did not answer, asked %d times: %w", attempt+1, err)
		}
	}
}

// ReadObject reads a whole object, again and again while servers are away and ctx goes on. check sees what the object is
// said to be before memory is taken for it; its error ends the reading.
func ReadObject(ctx context.Context, store jetstream.ObjectStore, name string, check func(*jetstream.ObjectInfo) error) ([]byte, error) {
	for attempt := 0; ; attempt++ {
		body, err := readOnce(ctx, store, name, check)
		if err == nil || !IsOutage(err) {
			return body, err
		}
		if ctx.Err() != nil || Pause(ctx, attempt) != nil {
			return nil, fmt.Errorf("the object %q did not come, asked for %d times: %w", name, attempt+1, err)
		}
	}
}

func readOnce(ctx context.Context, store jetstream.ObjectStore, name string, check func(*jetstream.ObjectInfo) error) ([]byte, error) {
	reading, cancel := context.WithCancel(ctx)
	defer cancel()
	late := time.AfterFunc(openTimeout, cancel)
	result, err := store.Get(rollingDeadline{reading}, name)
	if !late.Stop() && ctx.Err() == nil {
		if err == nil {
			_ = result.Close() // nothing was read from it
		}
		return nil, fmt.Errorf("it was not opened in %v: %w", openTimeout, nats.ErrTimeout)
	}
	if err != nil {
		return nil, err
	}
	defer result.Close()
	info, err := result.Info()
	if err == nil {
		err = check(info)
	}
	if err != nil {
		return nil, err
	}
	return readWhole(ctx, result, info.Size)
}

// readWhole reads so many bytes and their end, at which the library compares the digest. A read that returns nothing has
// waited as long as the deadline of its context says.
func readWhole(ctx context.Context, r io.Reader, size uint64) ([]byte, error) {
	body := make([]byte, size+1) // one more, for the end
	for n := 0; ; {
		k, err := r.Read(body[n:])
		n += k
		switch {
		case errors.Is(err, io.EOF) && uint64(n) == size:
			return body[:n:n], nil
		case errors.Is(err, io.EOF):
			return nil, io.ErrUnexpectedEOF
		case err != nil:
			return nil, err
		case uint64(n) > size:
			return nil, fmt.Errorf("more than the %d bytes that it is said to have", size)
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case k == 0:
			return nil, fmt.Errorf("nothing came for %v after %d of %d bytes: %w", readStall, n, size, nats.ErrTimeout)
		}
	}
}

// rollingDeadline is a context whose deadline is always some seconds away. The library reads an object's next bytes
// until the deadline that it finds, and all of the object within a few seconds where it finds none.
type rollingDeadline struct{ context.Context }

// Deadline implements context.Context.
func (c rollingDeadline) Deadline() (time.Time, bool) {
	rolling := time.Now().Add(readStall)
	if deadline, ok := c.Context.Deadline(); ok && deadline.Before(rolling) {
		return deadline, true
	}
	return rolling, true
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

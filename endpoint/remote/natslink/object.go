package natslink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/retry"
)

// PutObject stores an object. It repeats the attempt during an outage until ctx ends. It calls body for a new reader in
// each attempt and closes that reader.
func PutObject(ctx context.Context, store jetstream.ObjectStore, meta jetstream.ObjectMeta, body func() io.ReadCloser) (*jetstream.ObjectInfo, error) {
	var info *jetstream.ObjectInfo
	err := duringOutage(ctx, func() (err error) {
		info, err = putOnce(ctx, store, meta, body)
		return err
	})
	return info, err
}

// backoff holds the pauses between attempts during an outage.
var backoff = retry.Backoff{Initial: 50 * time.Millisecond, Max: time.Second}

// ErrQuota means that the client's quota of requests was used up until the context of a call ended. The server has not
// executed the refused requests.
var ErrQuota = errors.New("quota used up")

// duringOutage repeats ask during an outage, or while the client's quota is used up, until ctx ends.
func duringOutage(ctx context.Context, ask func() error) error {
	attempts := 0
	policy := retry.Policy{Backoff: backoff, Again: func(err error) (bool, time.Duration) { return IsOutage(err) || OverQuota(err), 0 }}
	err := policy.Do(ctx, func() (bool, error) {
		attempts++
		return false, ask()
	})
	switch {
	case err != nil && OverQuota(err):
		return fmt.Errorf("%w: %d attempts were refused: %w", ErrQuota, attempts, err)
	case err != nil && IsOutage(err):
		return fmt.Errorf("no answer from NATS after %d attempts: %w", attempts, err)
	}
	return err
}

func putOnce(ctx context.Context, store jetstream.ObjectStore, meta jetstream.ObjectMeta, body func() io.ReadCloser) (*jetstream.ObjectInfo, error) {
	bytes := body()
	defer bytes.Close()
	return store.Put(withoutDeadline{ctx}, meta, bytes)
}

const (
	// openTimeout limits one attempt of a request that may be lost with a server.
	openTimeout = 5 * time.Second
	// readStall is the time without data after which reading an object fails. It exceeds ten seconds, after which the
	// library recreates its consumer. If that fails, the library stops without an error.
	readStall = 15 * time.Second
)

// Ask makes requests and repeats them during an outage until ctx ends. The context of each attempt ends after a few
// seconds, because a request that is lost with a server is never answered. ask must be idempotent.
func Ask(ctx context.Context, ask func(ctx context.Context) error) error {
	return duringOutage(ctx, func() error {
		try, cancel := context.WithTimeout(ctx, openTimeout)
		defer cancel()
		return ask(try)
	})
}

// ReadObject reads a whole object. check receives the object's description before memory is allocated for it, and its
// error ends the reading. Otherwise it is StreamObject.
func ReadObject(ctx context.Context, store jetstream.ObjectStore, name string, check func(*jetstream.ObjectInfo) error) (body []byte, err error) {
	err = StreamObject(ctx, store, name, func(info *jetstream.ObjectInfo, r io.Reader) error {
		if err := check(info); err != nil {
			return err
		}
		body = make([]byte, info.Size)
		_, err := io.ReadFull(r, body)
		return err
	})
	if err != nil {
		return nil, err
	}
	return body, nil
}

// StreamObject calls read with an object's description and its bytes. It calls read again for another attempt during an
// outage, until ctx ends. Without an error, read has read the whole object and its digest is correct.
func StreamObject(ctx context.Context, store jetstream.ObjectStore, name string, read func(info *jetstream.ObjectInfo, r io.Reader) error) error {
	err := duringOutage(ctx, func() error { return readOnce(ctx, store, name, read) })
	if err != nil && IsOutage(err) {
		return fmt.Errorf("read object %q: %w", name, err)
	}
	return err
}

func readOnce(ctx context.Context, store jetstream.ObjectStore, name string, read func(*jetstream.ObjectInfo, io.Reader) error) error {
	if own, is := store.(*Objects); is {
		return own.readPieces(ctx, name, read)
	}
	reading, cancel := context.WithCancel(ctx)
	defer cancel()
	late := time.AfterFunc(openTimeout, cancel)
	result, err := store.Get(rollingDeadline{reading}, name)
	if !late.Stop() && ctx.Err() == nil {
		if err == nil {
			_ = result.Close() // nothing was read from it
		}
		return fmt.Errorf("not opened within %v: %w", openTimeout, nats.ErrTimeout)
	}
	if err != nil {
		return err
	}
	defer result.Close()
	info, err := result.Info()
	if err != nil {
		return err
	}
	body := &objectReader{ctx: ctx, r: result}
	if err := read(info, body); errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	} else if err != nil {
		return err
	}
	// The library verifies the digest when it reports the end.
	switch n, err := body.Read(make([]byte, 1)); {
	case n > 0:
		return fmt.Errorf("the object is longer than the %d bytes in its description", info.Size)
	case !errors.Is(err, io.EOF):
		return err
	}
	return nil
}

// objectReader reads an object. A read of the library that returns nothing has waited until the deadline of its context,
// and is an error here.
type objectReader struct {
	ctx   context.Context
	r     io.Reader
	bytes int64
}

// Read implements io.Reader.
func (o *objectReader) Read(p []byte) (int, error) {
	n, err := o.r.Read(p)
	o.bytes += int64(n)
	switch {
	case err != nil || n > 0 || len(p) == 0:
		return n, err
	case o.ctx.Err() != nil:
		return 0, o.ctx.Err()
	}
	return 0, fmt.Errorf("no data for %v after %d bytes: %w", readStall, o.bytes, nats.ErrTimeout)
}

// rollingDeadline is a context whose deadline is always a few seconds away. The library waits for an object's next
// bytes until that deadline. Without a deadline, it must read the whole object within a few seconds.
type rollingDeadline struct{ context.Context }

// Deadline implements context.Context.
func (c rollingDeadline) Deadline() (time.Time, bool) {
	rolling := time.Now().Add(readStall)
	if deadline, ok := c.Context.Deadline(); ok && deadline.Before(rolling) {
		return deadline, true
	}
	return rolling, true
}

// withoutDeadline hides the deadline of a context. With a deadline, the library would wait until then for the
// acknowledgement of a piece that was lost with its server. Without one, it waits a few seconds.
type withoutDeadline struct{ context.Context }

// Deadline implements context.Context.
func (withoutDeadline) Deadline() (time.Time, bool) { return time.Time{}, false }

// Pause waits before another attempt: 50 ms after the first, doubled up to a second. It returns the error of ctx if ctx
// ends first.
func Pause(ctx context.Context, attempt int) error {
	if retry.Sleep(ctx, backoff.Pause(attempt)) != nil {
		return ctx.Err()
	}
	return nil
}

// Error codes of a cluster that has no leader.
const (
	codeNoCluster = 10008 // "JetStream system temporarily unavailable"
	codeNotLeader = 10009
	codeInProcess = 10158 // "duplicate message id is in process": the previous attempt may still succeed
)

// IsOutage reports whether err means that the servers did not answer or had no leader. They may have executed the
// request despite the error.
func IsOutage(err error) bool {
	if _, code, ok := errorCode(err); ok {
		return code == codeNoCluster || code == codeNotLeader || code == codeInProcess
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

// OverQuota reports whether the server refused a request because the client's quota of requests was used up. The library
// keeps only the text of answers to direct requests.
func OverQuota(err error) bool {
	if status, _, ok := errorCode(err); ok {
		return status == http.StatusTooManyRequests
	}
	return err != nil && strings.Contains(err.Error(), ErrQuota.Error())
}

// errorCode returns the status and the JetStream error code of an answer. The library has two types for them: its object
// stores use the older one when they begin to read.
func errorCode(err error) (status, code int, ok bool) {
	var api *jetstream.APIError
	var js jetstream.JetStreamError
	var older *nats.APIError
	switch {
	case errors.As(err, &api):
	case errors.As(err, &js):
		api = js.APIError()
	case errors.As(err, &older):
		return older.Code, int(older.ErrorCode), true
	}
	if api == nil {
		return 0, 0, false
	}
	return api.Code, int(api.ErrorCode), true
}

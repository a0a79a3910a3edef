package stream

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/contain"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/retry"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream/streampb"
)

// ClientOptions configures a client.
type ClientOptions struct {
	// Device is the device for received tensors. Borrowed.
	Device driver.Device
	// Host is host memory, used to make tensors contiguous before they are sent. The default is Device. Borrowed.
	Host driver.Device
	// Limits limits what a server can make the client hold.
	Limits Limits
	// Attempts is the number of consecutive attempts without progress after which Put and Get fail if the connection
	// breaks. The default is 5. 1 disables retries.
	Attempts int
	// Backoff is the delay before the second attempt. It doubles up to 5 s. The default is 100 ms.
	Backoff time.Duration
	// Progress is called with the bytes of a transfer sent or received so far. It may be nil. Calls are not concurrent.
	Progress func(done, total int64)
}

// Client calls sharedtensor.stream.v1.TensorStream. Its methods are safe for concurrent use.
type Client struct {
	rpc    streampb.TensorStreamClient
	opts   ClientOptions
	limits Limits
	pool   *admission.Pool
}

// NewClient returns a client of the server behind conn, which it borrows. Calls always use the codec of package bulk.
func NewClient(conn grpc.ClientConnInterface, opts ClientOptions) *Client {
	if opts.Host == nil {
		opts.Host = opts.Device
	}
	opts.Attempts = cmp.Or(opts.Attempts, 5)
	opts.Backoff = cmp.Or(opts.Backoff, 100*time.Millisecond)
	limits := opts.Limits.withDefaults()
	return &Client{rpc: streampb.NewTensorStreamClient(conn), opts: opts, limits: limits, pool: admission.NewPool(admission.Limits{Bytes: limits.PendingBytes})}
}

// callOptions are the options of every call.
var callOptions = []grpc.CallOption{grpc.ForceCodecV2(bulk.Codec()), grpc.MaxCallRecvMsgSize(math.MaxInt32)}

// Receipt is the result of a Put.
type Receipt struct {
	// Version is the version of the set, or 0 if it has none.
	Version uint64
	// Sent is the number of tensor bytes sent, including repeated ones.
	Sent int64
	// Calls is the number of calls that were needed.
	Calls int
}

// Put sends a set atomically. It borrows the set, whose tensors must not be written until Put has returned. If the
// connection breaks, Put reconnects and resumes at the position that the server reports. Errors are those of this
// package, wrapped in *RemoteError if the server returned them. The error is ErrUnknown if everything was sent and no
// answer was received.
func (c *Client) Put(ctx context.Context, set *Set) (*Receipt, error) {
	op := fmt.Sprintf("put %q", set.Name)
	named := *set
	if named.ID == "" {
		named.ID = rand.Text()
	}
	total := int64(0)
	for _, t := range set.Tensors.All() {
		total += t.Bytes()
	}
	receipt := &Receipt{}
	all := false // all bytes were sent at least once
	err := c.attempts(ctx, func(ctx context.Context) (progressed bool, err error) {
		receipt.Calls++
		p := &putting{client: c, set: &named, total: total}
		done, err := p.run(ctx)
		receipt.Sent += p.sent
		all = all || p.complete
		if err == nil {
			receipt.Version = done.GetVersion()
		}
		return p.sent > 0, err
	})
	if err != nil && all && broken(err) {
		err = fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	if err != nil {
		return nil, remoteError(op, err)
	}
	return receipt, nil
}

// attempts calls f until it succeeds or fails for a reason other than the connection. It gives up after too many
// attempts without progress.
func (c *Client) attempts(ctx context.Context, f func(context.Context) (progressed bool, err error)) error {
	policy := retry.Policy{
		Backoff: retry.Backoff{Initial: c.opts.Backoff, Max: 5 * time.Second, Jitter: 0.5}, Attempts: c.opts.Attempts,
		Again: func(err error) (bool, time.Duration) { return broken(err), 0 },
	}
	return policy.Do(ctx, func() (bool, error) {
		call, cancel := context.WithCancel(ctx)
		defer cancel()
		return f(call)
	})
}

// broken reports whether the connection failed or damaged data.
func broken(err error) bool {
	code := status.Code(err)
	return code == codes.Unavailable || code == codes.DataLoss || errors.Is(err, io.ErrUnexpectedEOF)
}

// putting is one call of Put.
type putting struct {
	client   *Client
	set      *Set
	total    int64
	sent     int64
	complete bool
}

func (p *putting) run(ctx context.Context) (*streampb.Done, error) {
	call, err := p.client.rpc.Put(ctx, callOptions...)
	if err != nil {
		return nil, err
	}
	if err := call.SendMsg(&streampb.Chunk{Set: describeSet(p.set)}); err != nil {
		return nil, endOf(call, err)
	}
	first, err := call.Recv()
	if err != nil {
		return nil, err
	}
	if first.GetDone() != nil { // the server does not compare repetitions
		p.complete = true
		return first.GetDone(), nil
	}
	granted := newCredit()
	granted.grant(first.GetCredit())
	answers := make(chan answer, 1)
	contain.Go(func() { listenForDone(call, granted, answers) }, func(err error) { // ends with the call
		granted.end(err)
		answers <- answer{nil, err}
	})
	if err := p.send(ctx, call, granted, first.GetResume()); err != nil {
		if a := <-answers; a.err != nil {
			return nil, a.err // the reason that sending failed
		}
		return nil, err
	}
	p.complete = true
	a := <-answers
	return a.done, a.err
}

// answer is the final result of a Put.
type answer struct {
	done *streampb.Done
	err  error
}

func listenForDone(call grpc.BidiStreamingClient[streampb.Chunk, streampb.PutReply], granted *credit, answers chan<- answer) {
	for {
		reply, err := call.Recv()
		if errors.Is(err, io.EOF) {
			err = status.Error(codes.Internal, "the server ended the call without an answer")
		}
		if err != nil {
			granted.end(err)
		}
		if err != nil || reply.GetDone() != nil {
			answers <- answer{reply.GetDone(), err}
			return
		}
		granted.grant(reply.GetCredit())
	}
}

func (p *putting) send(ctx context.Context, call grpc.BidiStreamingClient[streampb.Chunk, streampb.PutReply], granted *credit, resume []*streampb.Position) error {
	done := int64(0)
	for _, position := range resume {
		done += int64(position.GetOffset())
	}
	p.client.progress(done, p.total)
	out := &sender{ctx: ctx, call: call, credit: granted, stall: p.client.limits.Stall, host: p.client.opts.Host, sent: func(n int) {
		p.sent += int64(n)
		done += int64(n)
		p.client.progress(min(done, p.total), p.total)
	}}
	if err := out.set(p.set, resume); err != nil {
		// Abort the call, or let the server see it as broken.
		granted.end(err)
		return err
	}
	return call.CloseSend()
}

func (c *Client) progress(done, total int64) {
	if c.opts.Progress != nil {
		c.opts.Progress(done, total)
	}
}

// endOf returns the reason that a call ended after SendMsg failed with io.EOF.
func endOf(call interface{ RecvMsg(any) error }, err error) error {
	if errors.Is(err, io.EOF) {
		if why := call.RecvMsg(new(streampb.PutReply)); why != nil {
			return why
		}
	}
	return err
}

// Local returns the path of the owner's socket if the server runs on this host and reveals it, otherwise an empty
// string.
func (c *Client) Local(ctx context.Context) (socket string, err error) {
	proof := hostProof(c.opts.Device)
	if proof == nil {
		return "", nil
	}
	reply, err := c.rpc.Local(ctx, &streampb.LocalRequest{HostProof: proof}, callOptions...)
	return reply.GetSocket(), remoteError("local", err)
}

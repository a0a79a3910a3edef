package stream

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"math"
	mathrand "math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream/streampb"
)

// ClientOptions says where a client puts tensors and how hard it tries.
type ClientOptions struct {
	// Device is where tensors that arrive are put. Borrowed.
	Device driver.Device
	// Host is host memory, for tensors that have to be made contiguous before they are sent; nil for Device. Borrowed.
	Host driver.Device
	// Limits bound what a server can make the client hold.
	Limits Limits
	// Attempts is how often Put and Get go on after a broken connection without getting any further; 5. 1 for never.
	Attempts int
	// Backoff is the pause before the second attempt, which doubles up to 5 s; 100 ms.
	Backoff time.Duration
	// Progress is told of the bytes of a transfer as they leave or come; nil for nobody. It is called from one
	// goroutine at a time.
	Progress func(done, total int64)
}

// Client calls sharedtensor.stream.v1.TensorStream. Its methods are safe for concurrent use.
type Client struct {
	rpc    streampb.TensorStreamClient
	opts   ClientOptions
	limits Limits
	budget *budget
}

// NewClient returns a client of the server behind conn, which it borrows. Its calls use the codec of package bulk,
// whatever conn uses.
func NewClient(conn grpc.ClientConnInterface, opts ClientOptions) *Client {
	if opts.Host == nil {
		opts.Host = opts.Device
	}
	def(&opts.Attempts, 5)
	def(&opts.Backoff, 100*time.Millisecond)
	limits := opts.Limits.withDefaults()
	return &Client{rpc: streampb.NewTensorStreamClient(conn), opts: opts, limits: limits, budget: &budget{limit: limits.PendingBytes}}
}

// callOptions are those of every call.
var callOptions = []grpc.CallOption{grpc.ForceCodecV2(bulk.Codec()), grpc.MaxCallRecvMsgSize(math.MaxInt32)}

// Receipt says what became of a Put.
type Receipt struct {
	// Version is the number that the set got; 0 where it has none.
	Version uint64
	// Sent is how many bytes of tensors went over the network, those sent again included.
	Sent int64
	// Calls is how many calls it took.
	Calls int
}

// Put sends a set, which it borrows: nobody may write to its tensors until Put has returned. The server takes it whole
// or not at all. Where the connection breaks, Put dials again through its connection and goes on where the server says.
// Errors are those of this package, as *RemoteError where the server said so; ErrUnknown where all was sent and no
// answer could be had.
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
	all := false // all bytes of it were sent at least once
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

// attempts calls f until it succeeds, fails for a reason other than the connection, or has got no further for too long.
func (c *Client) attempts(ctx context.Context, f func(context.Context) (progressed bool, err error)) error {
	pause := c.opts.Backoff
	for left := c.opts.Attempts; ; {
		call, cancel := context.WithCancel(ctx)
		progressed, err := f(call)
		cancel()
		if err == nil || !broken(err) || ctx.Err() != nil {
			return err
		}
		if progressed {
			left, pause = c.opts.Attempts, c.opts.Backoff
		}
		if left--; left <= 0 {
			return err
		}
		timer := time.NewTimer(pause/2 + time.Duration(mathrand.Int64N(int64(pause))))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
		pause = min(2*pause, 5*time.Second)
	}
}

// broken reports whether the connection is to blame, or the bytes were damaged on it.
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
	if first.GetDone() != nil { // an earlier call was the last one, and its answer was lost
		p.complete = true
		return first.GetDone(), nil
	}
	granted := newCredit()
	granted.grant(first.GetCredit())
	answers := make(chan answer, 1)
	go listenForDone(call, granted, answers) // ends with the call
	if err := p.send(ctx, call, granted, first.GetResume()); err != nil {
		if a := <-answers; a.err != nil {
			return nil, a.err // why sending failed
		}
		return nil, err
	}
	p.complete = true
	a := <-answers
	return a.done, a.err
}

// answer is how a Put ended.
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
		// The call is over or is of no use any more: the server hears of it as a broken one.
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

// endOf is why a call ended whose SendMsg failed with io.EOF.
func endOf(call interface{ RecvMsg(any) error }, err error) error {
	if errors.Is(err, io.EOF) {
		if why := call.RecvMsg(new(streampb.PutReply)); why != nil {
			return why
		}
	}
	return err
}

// Local returns the path of the owner's socket where the server runs on this host, and so says it; empty where it does
// not.
func (c *Client) Local(ctx context.Context) (socket string, err error) {
	proof := hostProof(c.opts.Device)
	if proof == nil {
		return "", nil
	}
	reply, err := c.rpc.Local(ctx, &streampb.LocalRequest{HostProof: proof}, callOptions...)
	return reply.GetSocket(), remoteError("local", err)
}

package keeper

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transport"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Process is a store of descriptors in a keeper process. If the keeper ends, Process starts another one and stores
// everything again. Its methods are safe for concurrent use.
type Process struct {
	opts Options

	mu       sync.Mutex
	conn     *wire.Conn // nil without a keeper
	socket   syscall.RawConn
	pid      int                 // of the keeper
	lost     int                 // process id of a keeper whose descriptors are lost, -1 if it is not known; 0 for none
	sent     uint64              // id of the last request
	answered uint64              // id of the last answer
	room     int                 // number of descriptors that the keeper can hold in addition
	held     map[string]*os.File // what this process has stored; owned
	missing  []string            // names in held that the current keeper does not have yet
	single   bool                // the keeper takes one descriptor in a request
	failures repeated            // of connections
	failed   time.Time           // time of the last connection attempt
	failure  error               // its error
	closed   bool
	ended    chan struct{} // closed by Close
	more     chan struct{} // receives a value if names are missing
	watch    sync.WaitGroup
}

// Options configure a [Process].
type Options struct {
	// Socket is the path of the keeper's socket.
	Socket string
	// Command starts a keeper on the socket, as it is: nothing is appended, so it contains the socket's path. Empty means
	// sharedtensor keep --socket PATH, found in PATH. The process gets its own session, so that it does not end with the
	// owner.
	Command []string
	// ConnectOnly never starts a keeper, and Command is not used: the keeper belongs to another container or to a service
	// manager. Connect waits up to 5 s for it. A keeper that is started again gets everything from this process.
	ConnectOnly bool
	// Logger reports lost keepers; nil means [slog.Default].
	Logger *slog.Logger
}

// Connect connects to the keeper on the socket, or starts one. The caller closes the returned Process; the keeper
// continues.
func Connect(opts Options) (*Process, error) {
	if len(opts.Command) == 0 {
		opts.Command = []string{"sharedtensor", "keep", "--socket", opts.Socket}
	}
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	if err := transport.CheckSocketPath(opts.Socket); err != nil {
		return nil, fmt.Errorf("the keeper's socket: %w", err)
	}
	p := &Process{opts: opts, held: map[string]*os.File{}, ended: make(chan struct{}), more: make(chan struct{}, 1)}
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.connectLocked()
	for end := time.Now().Add(startTime); err != nil && opts.ConnectOnly && time.Now().Before(end); {
		time.Sleep(20 * time.Millisecond)
		err = p.connectLocked()
	}
	if err != nil {
		return nil, err
	}
	p.watch.Go(p.watchKeeper)
	return p, nil
}

// LostPID returns the process id of an earlier keeper that was killed while no owner ran, or together with its owner. The
// versions that it held are lost. LostPID returns 0 if there was no such keeper, and -1 if its id is unknown. The id is
// that of the keeper's own PID namespace.
func (p *Process) LostPID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost
}

// PID returns the process id of the keeper; 0 if it is in a PID namespace that this process cannot see.
func (p *Process) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pid
}

// connectLocked connects, if necessary to a new keeper, and stores what this process has stored before. A keeper that is
// being killed may still accept the first connection.
func (p *Process) connectLocked() error {
	if p.failure != nil && !p.opts.ConnectOnly && time.Since(p.failed) < retryInterval {
		return p.failure
	}
	err := p.connectOnceLocked()
	if errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, io.EOF) {
		err = p.connectOnceLocked()
	}
	p.failed, p.failure = time.Now(), err
	return err
}

// retryInterval is the time after a failed connection in which requests fail at once. An attempt takes up to startTime, so
// requests that wait for each other would otherwise wait for an attempt each. Without starting a keeper it takes no time.
const retryInterval = time.Second

func (p *Process) connectOnceLocked() error {
	if p.closed {
		return net.ErrClosed
	}
	if p.conn != nil {
		return nil
	}
	socket, err := p.dial()
	if err == nil {
		p.conn, p.socket, err = checked(socket)
	}
	if err != nil {
		return fmt.Errorf("keeper on %s: %w", p.opts.Socket, err)
	}
	out, _, err := p.tryLocked(request{Operation: opNames})
	if err == nil {
		p.missing = slices.Sorted(maps.Keys(p.held)) // journals are the first
		err = p.refillLocked()
	}
	if err != nil {
		p.dropLocked()
		return fmt.Errorf("keeper on %s: %w", p.opts.Socket, err)
	}
	p.pid = int(p.conn.Peer().PID)
	if out.Lost != 0 && len(p.held) == 0 {
		p.reportLost(out.Lost)
	}
	return nil
}

// reportLost reports that an earlier keeper was killed and that this process cannot replace what it held.
func (p *Process) reportLost(pid int) {
	if endpoint.Inherited() != "" {
		p.opts.Logger.Warn("the keeper was killed; the owner that this process replaces hands its versions over, and they are stored in a new keeper",
			"socket", p.opts.Socket, "pid", pid)
		return
	}
	p.lost = pid
	p.opts.Logger.Error("an earlier keeper was killed while no owner ran, or together with its owner: the versions that it held are lost",
		"socket", p.opts.Socket, "pid", pid)
}

// watchInterval is the interval at which Process checks that the keeper runs. A keeper that was killed is replaced
// after that time, or at the next request.
const watchInterval = 200 * time.Millisecond

// watchKeeper replaces a keeper that has ended.
func (p *Process) watchKeeper() {
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	for {
		select {
		case <-p.ended:
			return
		case <-ticker.C:
		case <-p.more:
		}
		p.mu.Lock()
		if p.conn != nil && hungUp(p.socket) {
			p.opts.Logger.Warn("the keeper has ended; everything is stored in a new one", "socket", p.opts.Socket, "pid", p.pid)
			p.dropLocked()
		}
		if err := p.collectLocked(); err != nil {
			p.opts.Logger.Warn("the keeper refused a descriptor; everything is stored again", "socket", p.opts.Socket, "pid", p.pid, "error", err)
			p.dropLocked()
		}
		err := p.connectLocked()
		if err == nil && p.conn != nil {
			if err = p.refillLocked(); err != nil {
				p.dropLocked()
			}
		}
		switch {
		case p.closed:
		case err != nil:
			if p.failures.report(err) {
				p.opts.Logger.Warn("no keeper: published versions are lost if this owner ends", "error", err)
			}
		case len(p.missing) == 0 && p.failures.reset():
			p.opts.Logger.Warn("the keeper holds everything again", "socket", p.opts.Socket, "pid", p.pid)
		}
		p.mu.Unlock()
	}
}

// dropLocked closes the connection.
func (p *Process) dropLocked() {
	if p.conn != nil {
		p.conn.Close()
		p.conn = nil
	}
	p.sent, p.answered, p.room, p.missing, p.single = 0, 0, 0, nil, false
}

// request performs a request, a second time with a new connection if the first one fails.
func (p *Process) requestLocked(in request, with ...*os.File) (response, []*os.File, error) {
	if err := p.connectLocked(); err != nil {
		return response{}, nil, err
	}
	out, files, err := p.tryLocked(in, with...)
	var refused *refusedError
	if err == nil || errors.As(err, &refused) {
		return out, files, err
	}
	p.dropLocked()
	if err := p.connectLocked(); err != nil {
		return response{}, nil, err
	}
	return p.tryLocked(in, with...)
}

// refusedError is the answer of a keeper that refused a request. It matches [endpoint.ErrInUse] if a name is in use.
type refusedError struct {
	text  string
	inUse bool
}

func (e *refusedError) Error() string { return "the keeper refused: " + e.text }

func (e *refusedError) Is(target error) bool { return e.inUse && target == status.ErrInUse }

// tryLocked sends a request and waits for its answer.
func (p *Process) tryLocked(in request, with ...*os.File) (out response, files []*os.File, err error) {
	if err := p.sendLocked(in, with...); err != nil {
		return out, nil, err
	}
	if err := p.conn.SetReadDeadline(time.Now().Add(answerTime)); err != nil {
		return out, nil, err
	}
	for p.answered+1 < p.sent { // descriptors that were sent before
		if out, _, err := p.receiveLocked(); err != nil {
			return out, nil, fmt.Errorf("an earlier descriptor is not stored: %s", err)
		}
	}
	return p.receiveLocked()
}

// sendLocked sends a request.
func (p *Process) sendLocked(in request, with ...*os.File) error {
	in.Protocol = protocol
	body, err := message.Marshal(in)
	if err != nil {
		return err
	}
	p.sent++
	return p.conn.Send(wire.KindRequest, p.sent, body, with...)
}

// receiveLocked receives the next answer.
func (p *Process) receiveLocked() (out response, files []*os.File, err error) {
	frame, err := p.conn.Receive()
	if err != nil {
		return out, nil, err
	}
	defer frame.Files.Close()
	p.answered++
	if frame.Kind != wire.KindResponse || frame.ID != p.answered || decode(frame, &out) != nil {
		return out, nil, errAnswer
	}
	p.room = out.Room
	if out.Error != "" {
		return out, nil, &refusedError{out.Error, out.InUse}
	}
	for i := range frame.Files.Len() {
		f := frame.Files.Take(i)
		if f == nil {
			closeAll(files)
			return out, nil, fmt.Errorf("descriptors were lost, %w: this process has a limit of %d", unix.EMFILE, transport.MaxOpenFiles())
		}
		files = append(files, f)
	}
	return out, files, nil
}

// maxUnanswered is the number of requests whose answers have not been received. As much room is left for another owner of
// the keeper.
const maxUnanswered = 32

// sendOnlyLocked sends a request without waiting for the answer. It returns false if nothing was sent, because too many are
// unanswered or the keeper may have no room.
//
// A descriptor survives this process as soon as it is in the queue of the keeper's socket, because the keeper reads its
// queue to the end. A keeper that ends before that is replaced, and the new one gets all descriptors.
func (p *Process) sendOnlyLocked(in request, with ...*os.File) bool {
	if err := p.collectLocked(); err != nil {
		p.dropLocked() // a new connection stores everything again
	}
	if p.conn == nil || p.room-len(p.missing) <= 2*maxUnanswered || p.sent-p.answered >= maxUnanswered {
		return false
	}
	return p.sendLocked(in, with...) == nil
}

// collectLocked receives the answers that have arrived.
func (p *Process) collectLocked() error {
	for p.conn != nil && p.answered < p.sent && (p.conn.Buffered() || readable(p.socket)) {
		if err := p.conn.SetReadDeadline(time.Now().Add(answerTime)); err != nil {
			return err
		}
		if _, _, err := p.receiveLocked(); err != nil {
			return err
		}
	}
	return nil
}

// Put stores a duplicate of f under a name, which it borrows. It replaces what has the name. The descriptor survives this
// process when Put returns; it does not wait for a keeper with enough room.
func (p *Process) Put(name string, f *os.File) error { return p.put(name, f, false) }

// PutNew is Put for a name that is not in use. It fails with [endpoint.ErrInUse] if the name is, also by another process.
func (p *Process) PutNew(name string, f *os.File) error { return p.put(name, f, true) }

func (p *Process) put(name string, f *os.File, isNew bool) error {
	if err := checkName(name); err != nil {
		return err
	}
	if err := checkMemory(f); err != nil {
		return err
	}
	own, err := duplicate(f)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return errors.Join(net.ErrClosed, own.Close())
	}
	if in := (request{Operation: opPut, Names: []string{name}, New: isNew}); isNew || !p.sendOnlyLocked(in, own) {
		if _, _, err := p.requestLocked(in, own); err != nil {
			return errors.Join(fmt.Errorf("store %s: %w", name, err), own.Close())
		}
	}
	if before := p.held[name]; before != nil {
		before.Close()
	}
	p.held[name] = own
	return nil
}

// Remove closes the descriptors of the names in the keeper. Unknown names are no error.
func (p *Process) Remove(names ...string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range names {
		if f := p.held[name]; f != nil {
			delete(p.held, name)
			f.Close()
		}
	}
	for part := range slices.Chunk(names, perFrame) {
		in := request{Operation: opRemove, Names: part}
		if p.sendOnlyLocked(in) {
			continue
		}
		if _, _, err := p.requestLocked(in); err != nil {
			return fmt.Errorf("remove %d descriptors: %w", len(part), err)
		}
	}
	return nil
}

// Names returns the names of all descriptors that the keeper holds.
func (p *Process) Names() ([]string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.namesLocked()
}

func (p *Process) namesLocked() ([]string, error) {
	err := p.connectLocked()
	if err == nil {
		err = p.refillAllLocked()
	}
	var out response
	if err == nil {
		out, _, err = p.requestLocked(request{Operation: opNames})
	}
	if err != nil {
		return nil, fmt.Errorf("list the stored descriptors: %w", err)
	}
	return out.Names, nil
}

// Close disconnects from the keeper, which keeps everything.
func (p *Process) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	p.dropLocked()
	for _, f := range p.held {
		f.Close()
	}
	p.held = nil
	close(p.ended)
	p.mu.Unlock()
	p.watch.Wait()
	return nil
}

package keeper

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Process is a store of descriptors in a keeper process. If the keeper ends, Process starts another one and stores
// everything again. Its methods are safe for concurrent use.
type Process struct {
	opts Options

	mu     sync.Mutex
	conn   *wire.Conn // nil without a keeper
	socket syscall.RawConn
	pid    int // of the keeper
	nextID uint64
	held   map[string]*os.File // what this process has stored; owned
	closed bool
	ended  chan struct{} // closed by Close
	watch  sync.WaitGroup
}

// Options configure a [Process].
type Options struct {
	// Socket is the path of the keeper's socket.
	Socket string
	// Command starts a keeper on the socket; empty means sharedtensor keep --socket PATH, found in PATH. The process
	// gets its own session, so that it does not end with the owner.
	Command []string
	// Logger reports lost keepers; nil means [slog.Default].
	Logger *slog.Logger
}

// startTime limits how long a new keeper may take to listen.
const startTime = 5 * time.Second

// Connect connects to the keeper on the socket, or starts one. The caller closes the returned Process; the keeper
// continues.
func Connect(opts Options) (*Process, error) {
	if len(opts.Command) == 0 {
		opts.Command = []string{"sharedtensor", "keep", "--socket", opts.Socket}
	}
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	p := &Process{opts: opts, held: map[string]*os.File{}, ended: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.connectLocked(); err != nil {
		return nil, err
	}
	p.watch.Go(p.watchKeeper)
	return p, nil
}

// PID returns the process id of the keeper.
func (p *Process) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pid
}

// connectLocked connects, if necessary to a new keeper, and stores what this process has stored before.
func (p *Process) connectLocked() error {
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
	out, _, err := p.tryLocked(request{Operation: opNames}, nil)
	for _, name := range slices.Sorted(maps.Keys(p.held)) {
		if err == nil {
			_, _, err = p.tryLocked(request{Operation: opPut, Names: []string{name}}, p.held[name])
		}
	}
	if err != nil {
		p.dropLocked()
		return fmt.Errorf("keeper on %s: %w", p.opts.Socket, err)
	}
	p.pid = out.PID
	return nil
}

// dial connects to the keeper. Without one it starts one and waits until that listens.
func (p *Process) dial() (*net.UnixConn, error) {
	conn, err := connect(p.opts.Socket)
	if !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, os.ErrNotExist) {
		return conn, err
	}
	command := exec.Command(p.opts.Command[0], p.opts.Command[1:]...)
	command.Dir = "/"
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	// A keeper outlives the readers of this process's standard error, so it gets memory to write to.
	said, err := memoryFile("standard error of a keeper")
	if err != nil {
		return nil, err
	}
	defer said.Close()
	command.Stderr = said
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("start a keeper: %w", err)
	}
	exited := make(chan error, 1)
	go func() { exited <- command.Wait() }()
	for end := time.Now().Add(startTime); ; time.Sleep(2 * time.Millisecond) {
		conn, err := connect(p.opts.Socket)
		if err == nil {
			return conn, nil
		}
		select {
		case failed := <-exited: // perhaps because another owner has started one
			if conn, err := connect(p.opts.Socket); err == nil {
				return conn, nil
			}
			return nil, fmt.Errorf("start a keeper: %s ended: %w%s", p.opts.Command[0], errors.Join(failed, err), firstLine(said))
		default:
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("the new keeper does not listen after %v: %w", startTime, err)
		}
	}
}

// firstLine returns what a keeper wrote first, for an error text.
func firstLine(f *os.File) string {
	line := make([]byte, 200)
	n, _ := f.ReadAt(line, 0) // best effort: the keeper may have written nothing
	text, _, _ := strings.Cut(string(line[:n]), "\n")
	if text == "" {
		return ""
	}
	return ": " + message.CutText(text, len(line))
}

// connect connects once.
func connect(path string) (*net.UnixConn, error) {
	d := net.Dialer{Timeout: answerTime}
	c, err := d.Dial("unix", path)
	if err != nil {
		return nil, err
	}
	return c.(*net.UnixConn), nil
}

// checked checks that the keeper runs as the user of this process. It takes the socket.
func checked(socket *net.UnixConn) (*wire.Conn, syscall.RawConn, error) {
	raw, err := socket.SyscallConn()
	if err != nil {
		return nil, nil, err
	}
	conn, err := wire.NewConn(socket, limits)
	if err != nil {
		return nil, nil, err
	}
	if peer := conn.Peer(); !peer.SameUser() {
		conn.Close()
		return nil, nil, fmt.Errorf("%w: process %d of user %d listens there", os.ErrPermission, peer.PID, peer.UID)
	}
	return conn, raw, nil
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
		}
		p.mu.Lock()
		if p.conn != nil && hungUp(p.socket) {
			p.opts.Logger.Warn("the keeper has ended; everything is stored in a new one", "socket", p.opts.Socket, "pid", p.pid)
			p.dropLocked()
		}
		if err := p.connectLocked(); err != nil && !p.closed {
			p.opts.Logger.Warn("no keeper: published versions are lost if this owner ends", "error", err)
		}
		p.mu.Unlock()
	}
}

// hungUp reports whether the peer of a socket has closed it.
func hungUp(socket syscall.RawConn) bool {
	var events []unix.PollFd
	err := socket.Control(func(fd uintptr) {
		events = []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		_, _ = unix.Poll(events, 0) // an interrupted call is repeated at the next tick
	})
	return err != nil || events[0].Revents != 0
}

// dropLocked closes the connection.
func (p *Process) dropLocked() {
	if p.conn != nil {
		p.conn.Close()
		p.conn = nil
	}
}

// request performs a request, a second time with a new connection if the first one fails.
func (p *Process) requestLocked(in request, file *os.File) (response, []*os.File, error) {
	if err := p.connectLocked(); err != nil {
		return response{}, nil, err
	}
	out, files, err := p.tryLocked(in, file)
	var refused *refusedError
	if err == nil || errors.As(err, &refused) {
		return out, files, err
	}
	p.dropLocked()
	if err := p.connectLocked(); err != nil {
		return response{}, nil, err
	}
	return p.tryLocked(in, file)
}

// refusedError is the answer of a keeper that refused a request.
type refusedError struct{ text string }

func (e *refusedError) Error() string { return "the keeper refused: " + e.text }

// tryLocked sends a request and waits for its answer.
func (p *Process) tryLocked(in request, file *os.File) (out response, files []*os.File, err error) {
	in.Protocol = protocol
	body, err := message.Marshal(in)
	if err != nil {
		return out, nil, err
	}
	var with []*os.File
	if file != nil {
		with = []*os.File{file}
	}
	p.nextID++
	if err := p.conn.Send(wire.KindRequest, p.nextID, body, with...); err != nil {
		return out, nil, err
	}
	if err := p.conn.SetReadDeadline(time.Now().Add(answerTime)); err != nil {
		return out, nil, err
	}
	frame, err := p.conn.Receive()
	if err != nil {
		return out, nil, err
	}
	defer frame.Files.Close()
	if frame.Kind != wire.KindResponse || frame.ID != p.nextID || decode(frame, &out) != nil {
		return out, nil, errAnswer
	}
	if out.Error != "" {
		return out, nil, &refusedError{out.Error}
	}
	for i := range frame.Files.Len() {
		if f := frame.Files.Take(i); f != nil {
			files = append(files, f)
		}
	}
	return out, files, nil
}

// Put stores a duplicate of f under a name, which it borrows. It replaces what has the name.
func (p *Process) Put(name string, f *os.File) error {
	if err := checkName(name); err != nil {
		return err
	}
	own, err := duplicate(f)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, _, err := p.requestLocked(request{Operation: opPut, Names: []string{name}}, own); err != nil {
		return errors.Join(fmt.Errorf("store %s: %w", name, err), own.Close())
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
		if _, _, err := p.requestLocked(request{Operation: opRemove, Names: part}, nil); err != nil {
			return fmt.Errorf("remove %d descriptors: %w", len(part), err)
		}
	}
	return nil
}

// Stored returns duplicates of everything that the keeper holds. The caller owns them. Process stores them
// again if the keeper ends.
func (p *Process) Stored() (map[string]*os.File, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	out, _, err := p.requestLocked(request{Operation: opNames}, nil)
	if err != nil {
		return nil, fmt.Errorf("list the stored descriptors: %w", err)
	}
	stored := map[string]*os.File{}
	for part := range slices.Chunk(out.Names, perFrame) {
		if err = p.getLocked(part, stored); err != nil {
			closeAll(slices.Collect(maps.Values(stored)))
			return nil, fmt.Errorf("get the stored descriptors: %w", err)
		}
	}
	return stored, nil
}

// getLocked adds the descriptors of the names to stored.
func (p *Process) getLocked(names []string, stored map[string]*os.File) error {
	got, files, err := p.requestLocked(request{Operation: opGet, Names: names}, nil)
	if err != nil {
		return err
	}
	if len(files) != len(got.Names) {
		closeAll(files)
		return errAnswer
	}
	for i, name := range got.Names {
		if stored[name] != nil || checkName(name) != nil {
			files[i].Close()
			continue
		}
		stored[name] = files[i]
		if p.held[name] != nil {
			continue
		}
		if p.held[name], err = duplicate(files[i]); err != nil {
			closeAll(files[i+1:])
			delete(p.held, name)
			return err
		}
	}
	return nil
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

package keeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transport"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Config configures a keeper process.
type Config struct {
	// Socket is the path of its socket.
	Socket string
	// Idle is the time without descriptors and connections after which the keeper ends; 0 means 10 s, and a
	// negative value never.
	Idle time.Duration
	// Orphan is the time without connections after which the keeper ends if its socket file was removed and it cannot
	// create another one; 0 means 10 minutes. No owner can connect to it.
	Orphan time.Duration
	// Logger reports refused connections and requests; nil means none.
	Logger *slog.Logger
}

// Serve runs a keeper until ctx ends or it is idle. It holds descriptors for owners of the same user and does nothing
// else. When it ends, the descriptors are closed: memory that no process maps is lost. It fails with
// [endpoint.ErrInUse] if another keeper serves on the socket.
func Serve(ctx context.Context, c Config) error {
	if c.Idle == 0 {
		c.Idle = 10 * time.Second
	}
	if c.Orphan == 0 {
		c.Orphan = 10 * time.Minute
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	closeInherited()
	lost := 0
	if info, err := os.Lstat(c.Socket); err == nil && info.Mode()&os.ModeSocket != 0 { // only a killed keeper leaves its socket behind
		lost = leftPID(c.Socket)
	}
	socket, err := transport.Listen(c.Socket, transport.Permissions{}, 0)
	if err != nil {
		if errors.Is(err, status.ErrInUse) {
			err = fmt.Errorf("%w: a keeper serves on %s", status.ErrInUse, c.Socket)
		}
		return err
	}
	k := &keeper{log: c.Logger, idle: c.Idle, lost: lost, held: map[string]*os.File{}, peers: map[*peer]bool{}, most: min(transport.MaxOpenFiles()-unused, maxHeld)}
	ctx, k.stop = context.WithCancel(ctx)
	defer k.stop()
	k.timer = time.AfterFunc(math.MaxInt64, k.stop)
	k.startTimer()
	closed := make(chan struct{})
	context.AfterFunc(ctx, func() {
		defer close(closed)
		socket.Close() // removes the files, which would look like those of a killed keeper
	})
	defer func() { <-closed }() // k.close ends ctx
	defer k.close()
	k.connections.Go(func() { k.rebind(ctx, socket, c) })
	for {
		l := socket.Accepting()
		conn, err := l.AcceptUnix()
		switch {
		case err == nil:
			k.connections.Go(func() { k.serve(ctx, conn) })
		case ctx.Err() != nil:
			return nil
		case socket.Accepting() != l: // bound again
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ECONNABORTED):
			time.Sleep(10 * time.Millisecond) // until a connection ends
		default:
			return fmt.Errorf("accept on %s: %w", c.Socket, err)
		}
	}
}

// rebindInterval is the interval at which a keeper checks that its socket file exists.
const rebindInterval = 100 * time.Millisecond

// rebind creates the socket file again if it was removed or replaced. If that fails, it ends a keeper without connections
// after some time, because no owner can reach it.
func (k *keeper) rebind(ctx context.Context, socket *transport.Socket, c Config) {
	ticker := time.NewTicker(rebindInterval)
	defer ticker.Stop()
	var orphan time.Time // since when no owner can reach the keeper
	var failures repeated
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if !socket.Lost() {
			orphan = time.Time{}
			continue
		}
		err := socket.Rebind()
		if err == nil {
			k.log.Warn("the socket file was removed or replaced; it is bound again", "socket", c.Socket)
			continue
		}
		if failures.report(err) {
			k.log.Warn("the socket file was removed or replaced, and cannot be bound again; no owner can connect", "socket", c.Socket, "error", err)
		}
		switch {
		case k.connected():
			orphan = time.Time{}
		case orphan.IsZero():
			orphan = time.Now()
		case time.Since(orphan) > c.Orphan:
			k.log.Error("the keeper ends because no owner can connect to it; the versions that it holds are lost", "socket", c.Socket, "after", c.Orphan)
			k.stop()
			return
		}
	}
}

// connected reports whether an owner is connected.
func (k *keeper) connected() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.peers) > 0
}

// startedEnv marks the environment of a keeper that an owner has started.
const startedEnv = "SHARED_TENSOR_KEEPER"

// closeInherited closes the descriptors that a keeper has inherited from an owner that started it, except the standard
// streams: they may be the owner's inheritance, such as locks and pipes. This program opens its own with O_CLOEXEC.
func closeInherited() {
	if _, started := os.LookupEnv(startedEnv); !started {
		return
	}
	_ = os.Unsetenv(startedEnv) // fails only for invalid names
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd < firstPassed {
			continue
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			_ = unix.Close(fd) // best effort
		}
	}
}

// keeper holds the descriptors.
type keeper struct {
	log         *slog.Logger
	idle        time.Duration
	stop        func()
	timer       *time.Timer // ends an idle keeper
	most        int         // descriptors
	connections sync.WaitGroup

	mu    sync.Mutex
	lost  int // response.Lost
	peers map[*peer]bool
	held  map[string]*os.File
}

// peer is a connection.
type peer struct {
	conn   *wire.Conn
	socket syscall.RawConn
	ended  chan struct{} // closed after the last request
}

// serve answers the requests of one connection.
func (k *keeper) serve(ctx context.Context, socket *net.UnixConn) {
	raw, err := socket.SyscallConn()
	var conn *wire.Conn
	if err == nil {
		conn, err = wire.NewConn(socket, limits)
	}
	if err != nil {
		k.log.Warn("connection refused", "error", err)
		return
	}
	defer conn.Close()
	if peer := conn.Peer(); peer.Mapped() != nil {
		k.log.Warn("connection refused", "pid", peer.PID, "error", peer.Mapped())
		return
	} else if !peer.SameUser() {
		k.log.Warn("connection refused: it is another user's", "uid", peer.UID, "pid", peer.PID)
		return
	}
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	p := &peer{conn: conn, socket: raw, ended: make(chan struct{})}
	k.connect(p, true)
	defer k.connect(p, false)
	defer close(p.ended)
	for {
		frame, err := conn.Receive()
		if err == nil {
			err = k.answer(p, frame)
		}
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) && !errors.Is(err, unix.ECONNRESET) {
				k.log.Warn("connection ended", "pid", conn.Peer().PID, "error", err)
			}
			return
		}
	}
}

// connect adds or removes a connection, and starts or stops the timer of an idle keeper.
func (k *keeper) connect(p *peer, connected bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if connected {
		k.peers[p] = true
	} else {
		delete(k.peers, p)
	}
	if len(k.peers) == 0 && len(k.held) == 0 {
		k.startTimer()
	} else {
		k.timer.Stop()
	}
}

// startTimer starts the timer of an idle keeper.
func (k *keeper) startTimer() {
	if k.idle > 0 {
		k.timer.Reset(k.idle)
	}
}

// settle waits until the requests of processes that have ended are performed, because owners do not wait for the answers
// to all of theirs.
func (k *keeper) settle(except *peer) {
	k.mu.Lock()
	peers := slices.Collect(maps.Keys(k.peers))
	k.mu.Unlock()
	limit := time.NewTimer(settleTime)
	defer limit.Stop()
	for _, p := range peers {
		if p == except || !hungUp(p.socket) {
			continue
		}
		select {
		case <-p.ended:
		case <-limit.C:
			k.log.Warn("requests of a process that has ended are not performed yet", "pid", p.conn.Peer().PID)
			return
		}
	}
}

// settleTime limits the wait for requests that have arrived: performing them takes microseconds.
const settleTime = answerTime / 2

// answer performs one request and sends the answer, if the peer still receives it.
func (k *keeper) answer(p *peer, frame wire.Frame) error {
	defer frame.Files.Close()
	var in request
	if err := decode(frame, &in); err != nil {
		return err
	}
	if in.Operation == opNames {
		k.settle(p)
	}
	out := response{PID: os.Getpid()}
	var files []*os.File
	err := fmt.Errorf("protocol %d: this keeper has protocol %d", in.Protocol, protocol)
	if in.Protocol == protocol {
		out.Names, files, out.Room, err = k.perform(in, frame)
	}
	out.InUse = errors.Is(err, errNameInUse)
	k.mu.Lock()
	out.Lost = k.lost
	k.mu.Unlock()
	if err != nil {
		k.log.Warn("request refused", "pid", p.conn.Peer().PID, "error", err)
		out.Error = message.CutText(err.Error(), message.MaxErrorMessage)
	}
	defer closeAll(files)
	body, err := message.Marshal(out)
	if err != nil {
		return err
	}
	if err := p.conn.Send(wire.KindResponse, frame.ID, body, files...); err != nil {
		k.log.Warn("answer not sent", "pid", p.conn.Peer().PID, "error", err) // further requests may have arrived
	}
	return nil
}

// perform performs a request, and returns the number of further descriptors that there is room for. The caller owns the
// files. Descriptors are checked and closed without the lock, because both may wait for what is behind a descriptor.
func (k *keeper) perform(in request, frame wire.Frame) (names []string, files []*os.File, room int, err error) {
	var put, freed []*os.File
	if in.Operation == opPut {
		if put, err = taken(in.Names, frame); err != nil {
			in.Operation = opRefuse
		}
	}
	k.mu.Lock()
	switch in.Operation {
	case opRefuse:
	case opPut:
		freed, err = k.putLocked(in, put)
	case opRemove:
		for _, name := range in.Names {
			freed = k.dropLocked(name, freed)
		}
	case opNames:
		names = slices.Sorted(maps.Keys(k.held))
	case opGet:
		names, files, err = k.getLocked(in.Names)
	default:
		err = fmt.Errorf("operation %d is not known", in.Operation)
	}
	room = k.most - len(k.held)
	k.mu.Unlock()
	closeAll(freed)
	return names, files, room, err
}

// taken returns the descriptors of a frame for the names. The caller owns them.
func taken(names []string, frame wire.Frame) (files []*os.File, err error) {
	if n := len(names); n == 0 || n > perFrame || n != frame.Files.Len() {
		return nil, fmt.Errorf("%d names for %d descriptors", n, frame.Files.Len())
	}
	defer func() {
		if err != nil {
			closeAll(files)
		}
	}()
	for i, name := range names {
		if err := checkName(name); err != nil {
			return files, err
		}
		f := frame.Files.Take(i)
		if f == nil {
			return files, errors.New("the descriptor was lost: the keeper has reached its limit of open files")
		}
		files = append(files, f)
		if err := checkMemory(f); err != nil {
			return files, err
		}
	}
	return files, nil
}

// errNameInUse means that a name is in use and the request asked for a new one.
var errNameInUse = errors.New("the name is in use")

// putLocked takes descriptors, in the order of the names. The caller closes the returned ones.
func (k *keeper) putLocked(in request, files []*os.File) (freed []*os.File, err error) {
	for i, name := range in.Names {
		switch {
		case in.New && k.held[name] != nil:
			err = fmt.Errorf("%s: %w", name, errNameInUse)
		case len(k.held) >= k.most && k.held[name] == nil:
			err = fmt.Errorf("the keeper holds %d descriptors, the limit of open files allows no more", len(k.held))
		}
		if err != nil {
			return append(freed, files[i:]...), err
		}
		status.Reach("keeper received")
		freed = k.dropLocked(name, freed) // an owner that connects again stores the same descriptor again
		k.held[name], k.lost = files[i], 0
		status.Reach("keeper held")
	}
	return freed, nil
}

// dropLocked appends the descriptor of a name to freed, which the caller closes. The memory is freed if it was the last
// reference.
func (k *keeper) dropLocked(name string, freed []*os.File) []*os.File {
	if f := k.held[name]; f != nil {
		delete(k.held, name)
		freed = append(freed, f)
	}
	return freed
}

// getLocked returns duplicates of the descriptors of those names that are held.
func (k *keeper) getLocked(names []string) (found []string, files []*os.File, err error) {
	for _, name := range names[:min(len(names), perGet)] {
		if k.held[name] == nil {
			continue
		}
		f, err := duplicate(k.held[name])
		if err != nil {
			closeAll(files)
			return nil, nil, err
		}
		found, files = append(found, name), append(files, f)
	}
	return found, files, nil
}

// close ends the connections and closes the descriptors. It abandons a connection whose descriptor takes longer than answerTime to close.
func (k *keeper) close() {
	k.stop()
	ended := make(chan struct{})
	go func() {
		k.connections.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(answerTime):
		k.log.Warn("a connection does not end")
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.timer.Stop()
	closeAll(slices.Collect(maps.Values(k.held)))
}

//go:build linux && (amd64 || arm64) && cudapurego && !nocuda

package ccall

import (
	"runtime"
	"sync"

	"github.com/ebitengine/purego"
)

// Path names the implementation of calls: trampoline or purego.
const Path = "purego"

// words holds the words of a call. SyscallN with a slice of it does not allocate, while a list of arguments does.
type words [16]uintptr

var pool = sync.Pool{New: func() any { return new(words) }}

// Call calls the function and returns its result.
func (f *Frame6) Call() int32 {
	w := pool.Get().(*words)
	copy(w[:], f.A[:])
	r, _, _ := purego.SyscallN(f.Fn, w[:len(f.A)]...)
	pool.Put(w)
	return int32(r)
}

// Call calls the function and returns its result.
func (f *Frame16) Call() int32 {
	w := pool.Get().(*words)
	*w = f.A
	r, _, _ := purego.SyscallN(f.Fn, w[:]...)
	pool.Put(w)
	return int32(r)
}

// Call calls Push, the function and Pop on one thread, and returns the function's result.
func (g *Guarded6) Call() int32 {
	if r := g.enter(); r != 0 {
		return r
	}
	r := g.Frame6.Call()
	g.leave()
	return r
}

// Call calls Push, the function and Pop on one thread, and returns the function's result.
func (g *Guarded16) Call() int32 {
	if r := g.enter(); r != 0 {
		return r
	}
	r := g.Frame16.Call()
	g.leave()
	return r
}

// enter calls Push on a locked thread. If it succeeds, leave must follow.
func (g *Guard) enter() int32 {
	runtime.LockOSThread()
	f := Frame6{Fn: g.Push, A: [6]uintptr{g.Arg}}
	r := f.Call()
	if r != 0 {
		runtime.UnlockOSThread()
	}
	return r
}

func (g *Guard) leave() {
	f := Frame6{Fn: g.Pop}
	f.Call()
	runtime.UnlockOSThread()
}

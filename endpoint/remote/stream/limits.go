package stream

import (
	"fmt"
	"sync"
	"time"
)

// Limits bound what peers can make a server or a client hold. A zero field stands for its default.
type Limits struct {
	// TensorBytes bounds one tensor; 16 GiB.
	TensorBytes int64
	// PendingBytes bounds what all transfers that are not complete hold together; 64 GiB. Memory that the system does
	// not have is refused whatever this says.
	PendingBytes int64
	// TorchBytes bounds what the incomplete tensors of kpu.torch.Service hold together, which lie on the heap until
	// they can be read; 4 GiB.
	TorchBytes int64
	// Tensors bounds the tensors of a transfer; 100,000. A call of kpu.torch.Service may have 1,024 incomplete at a
	// time.
	Tensors int
	// Chunks bounds total_chunks of a tensor of kpu.torch.Service; 65,536.
	Chunks uint32
	// Window is how many bytes a peer may send before it has to wait for credit; 16 MiB.
	Window int64
	// Uploads bounds the transfers that broke off and wait to be resumed; 64. The oldest goes first.
	Uploads int
	// ResumeFor is how long one waits; a minute.
	ResumeFor time.Duration
	// Stall is how long a peer may do nothing in the middle of a transfer; two minutes.
	Stall time.Duration
}

// incompletePerCall bounds the incomplete tensors of one call of kpu.torch.Service.
const incompletePerCall = 1024

func (l Limits) withDefaults() Limits {
	def(&l.TensorBytes, 16<<30)
	def(&l.PendingBytes, 64<<30)
	def(&l.TorchBytes, 4<<30)
	def(&l.Tensors, 100_000)
	def(&l.Chunks, 65_536)
	def(&l.Window, 16<<20)
	def(&l.Uploads, 64)
	def(&l.ResumeFor, time.Minute)
	def(&l.Stall, 2*time.Minute)
	return l
}

// def sets what is zero.
func def[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// budget is a number of bytes that several transfers share.
type budget struct {
	mu    sync.Mutex
	taken int64
	limit int64
}

// take takes n bytes out of the budget, or fails with ErrLimit.
func (b *budget) take(n int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n > b.limit-b.taken {
		return fmt.Errorf("%w: %d bytes are more than is left of %d for transfers in progress", ErrLimit, n, b.limit)
	}
	b.taken += n
	return nil
}

func (b *budget) give(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.taken -= n
}

func (b *budget) used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.taken
}

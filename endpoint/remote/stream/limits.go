package stream

import (
	"cmp"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
)

// Limits limits what peers can make a server or a client hold. Zero fields mean the defaults.
type Limits struct {
	// TensorBytes limits the size of a tensor. The default is 16 GiB.
	TensorBytes int64
	// PendingBytes limits the received bytes of all incomplete transfers. The default is 64 GiB. One identity may use
	// half of it. Allocations that exceed the system's memory are refused regardless.
	PendingBytes int64
	// TorchBytes limits the incomplete tensors of kpu.torch.Service, which are on the heap until they can be read. The
	// default is 4 GiB.
	TorchBytes int64
	// Tensors limits the tensors of a transfer. The default is 100,000. A call of kpu.torch.Service may have 1,024
	// incomplete tensors at a time.
	Tensors int
	// Chunks limits total_chunks of a tensor of kpu.torch.Service. The default is 65,536.
	Chunks uint32
	// Window is the number of bytes that a peer may send without further credit. The default is 16 MiB.
	Window int64
	// Uploads limits the interrupted transfers of one client that can be resumed. The default is 64. The oldest is
	// dropped first.
	Uploads int
	// ResumeFor is how long an interrupted transfer can be resumed. The default is one minute.
	ResumeFor time.Duration
	// OutcomesFor is how long the outcome of a Put is kept for repetitions. The default is ten minutes.
	OutcomesFor time.Duration
	// Stall is the maximum time without activity of the peer during a transfer. The default is two minutes.
	Stall time.Duration
	// MinRate is the minimum rate of a sender during a transfer, in bytes per second. 0 means none.
	MinRate int64
}

// incompletePerCall limits the incomplete tensors of one call of kpu.torch.Service.
const incompletePerCall = 1024

func (l Limits) withDefaults() Limits {
	l.TensorBytes = cmp.Or(l.TensorBytes, 16<<30)
	l.PendingBytes = cmp.Or(l.PendingBytes, 64<<30)
	l.TorchBytes = cmp.Or(l.TorchBytes, 4<<30)
	l.Tensors = cmp.Or(l.Tensors, 100_000)
	l.Chunks = cmp.Or(l.Chunks, 65_536)
	l.Window = cmp.Or(l.Window, 16<<20)
	l.Uploads = cmp.Or(l.Uploads, 64)
	l.ResumeFor = cmp.Or(l.ResumeFor, time.Minute)
	l.OutcomesFor = cmp.Or(l.OutcomesFor, 10*time.Minute)
	l.Stall = cmp.Or(l.Stall, 2*time.Minute)
	return l
}

// limitError wraps an error of package admission in ErrLimit.
func limitError(err error) error { return fmt.Errorf("%w: %w", ErrLimit, err) }

// pace measures the rate of a call's sender while a transfer is incomplete.
type pace struct {
	rate  admission.Rate
	meter *admission.Meter
}

func newPace(l Limits) *pace {
	rate := admission.Rate{Bytes: l.MinRate, Grace: l.Stall}
	return &pace{rate, admission.NewMeter(rate)}
}

// next returns the next message. incomplete reports whether the sender has started a transfer; the rate is measured
// only then.
func next[M proto.Message](p *pace, chunks *bulk.Pump[M], incomplete bool) (M, *bulk.Message, error) {
	if !incomplete {
		p.meter = admission.NewMeter(p.rate)
	}
	begin := time.Now()
	head, message, err := chunks.Next(p.meter.Left())
	if err != nil || !incomplete {
		return head, message, err
	}
	if err := p.meter.Add(message.Size(), time.Since(begin)); err != nil {
		message.Free()
		return head, nil, err
	}
	return head, message, nil
}

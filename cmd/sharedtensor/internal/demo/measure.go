package demo

import (
	"fmt"
	"os"
)

// measure asks the kernel what the processes, which all have the same version, take. keep notes the shares in the
// report of each process. More than one copy is an error; that the kernel does not tell is none.
func (d *director) measure(processes []*process, keep bool) (*Memory, error) {
	model := &d.report.Model
	m := &Memory{Processes: len(processes), Copies: model.Bytes * int64(len(processes))}
	objects := map[string]bool{}
	for _, p := range processes {
		u, err := readUsage(p.report.PID)
		if err != nil {
			return &Memory{Processes: m.Processes, Copies: m.Copies, Unknown: err.Error()}, nil
		}
		if keep {
			p.report.PSS, p.report.Private = u.pss, u.private
		}
		m.PSS += u.pss
		for _, o := range u.objects {
			objects[o] = true
		}
	}
	m.Objects = len(objects)
	return m, m.judge(model)
}

// judge finds more than one copy.
func (m *Memory) judge(model *Model) error {
	// The kernel counts whole pages, and where it has large ones it need not know exactly which process maps which
	// part.
	slack := model.Mapped/50 + int64(m.Processes*os.Getpagesize())
	if m.Objects > 1 || m.PSS > model.Mapped+slack {
		return fmt.Errorf("%w: %d processes hold %d bytes in %d memory objects, the model is one of %d bytes",
			ErrDisagree, m.Processes, m.PSS, m.Objects, model.Mapped)
	}
	// Less is not two copies, but pages that are swapped out, or that the system does not count.
	m.OneCopy = m.PSS >= model.Bytes-slack
	return nil
}

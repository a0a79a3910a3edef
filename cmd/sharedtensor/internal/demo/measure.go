package demo

import (
	"fmt"
	"os"
)

// measure reads the memory use of the processes, which must all have attached the same version. keep stores the shares
// in the report of each process. More than one copy is an error. If the kernel does not report memory use, measure
// returns no error.
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

// judge returns an error if the memory is more than one copy.
func (m *Memory) judge(model *Model) error {
	// The kernel counts whole pages. For large pages it may only estimate which process maps which part.
	slack := model.Mapped/50 + int64(m.Processes*os.Getpagesize())
	if m.Objects > 1 || m.PSS > model.Mapped+slack {
		return fmt.Errorf("%w: %d processes hold %d bytes in %d memory objects, want 1 object of %d bytes",
			ErrDisagree, m.Processes, m.PSS, m.Objects, model.Mapped)
	}
	// A smaller sum is fine: some pages are swapped out or not counted by the system.
	m.OneCopy = m.PSS >= model.Bytes-slack
	return nil
}

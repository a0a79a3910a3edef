package command

import (
	"fmt"
	"io"
	"strconv"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/demo"
	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
)

// narrator prints the demo's steps as they happen.
type narrator struct {
	out, err io.Writer
	mark     string // prefix of a successful step
	indent   string // prefix of a continuation line

	meter *term.Meter // of the current long step
	doing string
}

// newNarrator returns a narrator that prints steps to out and progress to err.
func newNarrator(out, err io.Writer) *narrator {
	n := &narrator{out: out, err: err}
	if term.IsTerminal(out) {
		n.mark, n.indent = "✓ ", "  "
	}
	return n
}

// progress shows the progress of a long step. The step itself prints the final line.
func (n *narrator) progress(what string, done, total int64) {
	if n.meter == nil || n.doing != what {
		n.close()
		n.meter, n.doing = term.NewMeter(n.err, what, "", "the model"), what
	}
	n.meter.Update(done, total)
}

// close removes the progress bar.
func (n *narrator) close() {
	if n.meter != nil {
		n.meter.Close()
		n.meter = nil
	}
}

// say prints a line for a successful step.
func (n *narrator) say(format string, args ...any) {
	n.close()
	fmt.Fprintf(n.out, n.mark+format+"\n", args...)
}

// more prints a continuation line.
func (n *narrator) more(format string, args ...any) {
	fmt.Fprintf(n.out, n.indent+format+"\n", args...)
}

// step prints a completed step.
func (n *narrator) step(s demo.Step, r *demo.Report) {
	last := func() *demo.Process { return r.Processes[len(r.Processes)-1] }
	switch s {
	case demo.ModelReady:
		n.modelReady(r)
	case demo.OwnerServes:
		p := last()
		n.say("owner, pid %d: loaded %s in %s, %s", p.PID, term.FormatBytes(p.Bytes), term.FormatDuration(p.Load), term.FormatRate(p.Bytes, p.Load))
	case demo.ClientAttached:
		p := last()
		n.say("%s, pid %d: attached in %s, nothing copied", p.Role, p.PID, term.FormatDuration(p.Attach))
	case demo.AllAgree:
		n.say("all %d computed the same on the same bytes: %s", len(r.Processes), shortResult(r.Result))
	case demo.MemoryMeasured:
		n.memory(r.Memory, &r.Model)
	case demo.ClientKilledStep:
		k := r.ClientKilled
		n.say("killed %s (SIGKILL): its references were released after %s", r.Processes[clientIndex(r, k.PID)].Role, term.FormatDuration(k.Returned))
	case demo.VersionPublished:
		n.published(r)
	case demo.ClientSwitched:
		p := r.Published
		n.say("client 2 switched to version %d in %s: %s", p.Version, term.FormatDuration(p.Attach), shortResult(p.Result))
		n.more("both versions are in memory: client 1 uses 1, client 2 uses %d", p.Version)
	case demo.OwnerKilledStep:
		n.say("killed the owner (SIGKILL): readers continue, %s, the same results", term.Count(r.OwnerKilled.Runs, "run"))
	case demo.OwnerRestarted:
		a := r.Restarted
		n.say("new owner, pid %d, on the same socket: both readers reconnected after %s", a.PID, term.FormatDuration(a.Reconnected))
		n.say("client 1 published version 1 to it in %s, client 2 attached in %s", term.FormatDuration(a.HandOver), term.FormatDuration(a.Attach))
		n.more("nothing was loaded again, and the result is the same")
		n.memory(a.Memory, &r.Model)
	}
}

func (n *narrator) modelReady(r *demo.Report) {
	if r.Model.Path == "" {
		n.say("made a model of %s in %s", term.Count(r.Model.Tensors, "tensor"), term.FormatDuration(r.Model.Made))
		return
	}
	n.say("%s: %s", term.Printable(r.Model.Path), term.Count(r.Model.Tensors, "tensor"))
}

func (n *narrator) memory(m *demo.Memory, model *demo.Model) {
	switch {
	case m.Unknown != "":
		n.more("memory not measured: %s", m.Unknown)
	case m.OneCopy:
		n.say("one copy: %d processes hold %s, the model has %s", m.Processes, term.FormatBytes(m.PSS), term.FormatBytes(model.Bytes))
	default:
		n.more("the kernel counts %s for %d processes, the model has %s", term.FormatBytes(m.PSS), m.Processes, term.FormatBytes(model.Bytes))
	}
}

func (n *narrator) published(r *demo.Report) {
	if r.Published == nil {
		n.more("skipped: %s", r.Skipped)
		return
	}
	p := r.Published
	n.say("publisher, pid %d: published version %d and ended", p.PID, p.Version)
	if p.Changed != "" {
		n.more("it differs in %s", term.Printable(p.Changed))
	}
	n.more("readers of version 1 continued: %s, the same results", term.Count(p.Runs, "run"))
}

// clientIndex returns the index of a process.
func clientIndex(r *demo.Report, pid int) int {
	for i, p := range r.Processes {
		if p.PID == pid {
			return i
		}
	}
	return 0
}

// shortResult formats the result's number and the beginning of its checksum.
func shortResult(r *demo.Result) string { return r.Value + " (" + shortSum(r) + ")" }

// shortSum returns the beginning of the checksum, enough to compare by eye.
func shortSum(r *demo.Result) string {
	if r == nil {
		return "-"
	}
	return r.Checksum[:8]
}

// summary prints what each process used while all of them were running.
func (n *narrator) summary(r *demo.Report) error {
	fmt.Fprintln(n.out)
	t := term.NewTable(term.Column{Title: "PROCESS"}, term.Column{Title: "PID", Align: term.Right}, term.Column{Title: "MODEL", Align: term.Right},
		term.Column{Title: "LOAD", Align: term.Right}, term.Column{Title: "ATTACH", Align: term.Right}, term.Column{Title: "PSS", Align: term.Right},
		term.Column{Title: "PRIVATE", Align: term.Right}, term.Column{Title: "RESULT"})
	var private int64
	for _, p := range r.Processes[:r.Memory.Processes] {
		private += p.Private
		t.Add(p.Role, strconv.Itoa(p.PID), term.FormatBytes(p.Bytes), orDash(p.Load > 0, term.FormatDuration(p.Load)),
			orDash(p.Attach > 0, term.FormatDuration(p.Attach)), n.measured(r, p.PSS), n.measured(r, p.Private), shortSum(p.Result))
	}
	t.Add("together", "", term.FormatBytes(r.Memory.Copies), "", "", n.measured(r, r.Memory.PSS), n.measured(r, private), "")
	err := t.Print(n.out)
	fmt.Fprintf(n.out, "\nPSS: each page of the model, divided by the number of processes that map it.\n")
	fmt.Fprintf(n.out, "Separate copies would need %s.\n", term.FormatBytes(r.Memory.Copies))
	fmt.Fprintf(n.out, "The demo took %s and left nothing behind.\n", term.FormatDuration(r.Took))
	return err
}

// measured formats a size, or a dash if the kernel did not report it.
func (n *narrator) measured(r *demo.Report, bytes int64) string {
	return orDash(r.Memory.Unknown == "", term.FormatBytes(bytes))
}

// orDash returns text if ok, otherwise a dash.
func orDash(ok bool, text string) string {
	if !ok {
		return "-"
	}
	return text
}

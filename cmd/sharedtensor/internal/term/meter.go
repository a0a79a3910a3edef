package term

import (
	"fmt"
	"io"
	"time"

	"github.com/schollz/progressbar/v3"
)

// PlainEvery is the least time between two lines of progress where there is no terminal.
const PlainEvery = time.Second

// Meter tells people how far something has come: with a bar on a terminal, else with at most a line a second, and one
// line at the End. It is used by one goroutine at a time.
type Meter struct {
	w          io.Writer
	doing, did string // "loading", "loaded"
	what       string
	terminal   bool
	now        func() time.Time

	bar         *progressbar.ProgressBar // on a terminal, after the first update
	start, last time.Time                // zero before the first update
	done, total int64
}

// NewMeter returns a meter that writes to w, which is usually standard error. It writes nothing before its first
// update.
func NewMeter(w io.Writer, doing, did, what string) *Meter {
	return &Meter{w: w, doing: doing, did: did, what: Printable(what), terminal: IsTerminal(w), now: time.Now}
}

// Update says that done of total bytes are through.
func (m *Meter) Update(done, total int64) {
	m.total = max(total, 0)
	m.done = min(max(done, 0), m.total)
	now := m.now()
	if m.start.IsZero() {
		m.start, m.last = now, now
		if m.terminal && m.total > 0 {
			m.bar = m.newBar()
		}
	}
	if m.bar != nil {
		_ = m.bar.Set64(m.done) // a bar that cannot be drawn is no reason to stop
		return
	}
	if !m.terminal && now.Sub(m.last) >= PlainEvery && m.done < m.total {
		m.last = now
		fmt.Fprintln(m.w, m.line(now.Sub(m.start)))
	}
}

func (m *Meter) newBar() *progressbar.ProgressBar {
	return progressbar.NewOptions64(m.total,
		progressbar.OptionSetWriter(m.w),
		progressbar.OptionSetDescription(m.doing+" "+m.what),
		progressbar.OptionShowBytes(true),
		progressbar.OptionUseIECUnits(true),
		progressbar.OptionShowTotalBytes(true),
		progressbar.OptionShowCount(),
		progressbar.OptionSetPredictTime(true),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionFullWidth(),
		progressbar.OptionClearOnFinish(),
		progressbar.OptionSetRenderBlankState(true),
	)
}

// line is the progress in words.
func (m *Meter) line(elapsed time.Duration) string {
	text := fmt.Sprintf("%s %s: %s of %s, %d%%, %s", m.doing, m.what, FormatBytes(m.done), FormatBytes(m.total),
		Portion(m.done, m.total), FormatRate(m.done, elapsed))
	if left := timeLeft(elapsed, m.done, m.total); left > 0 {
		text += ", " + FormatDuration(left) + " left"
	}
	return text
}

// longestLeft is the longest time that is foretold.
const longestLeft = 100 * time.Hour

// timeLeft is how long the rest will take, in whole seconds; 0 where that cannot be said, or is no time at all.
func timeLeft(elapsed time.Duration, done, total int64) time.Duration {
	if done <= 0 || total <= done || elapsed <= 0 {
		return 0
	}
	left := float64(elapsed) * (float64(total) - float64(done)) / float64(done)
	if left > float64(longestLeft) {
		return 0
	}
	return time.Duration(left).Round(time.Second)
}

// Portion is how much of a whole is done, in percent, whatever numbers a peer has sent.
func Portion(done, total int64) int {
	if done <= 0 || total <= 0 {
		return 0
	}
	return int(100 * min(float64(done)/float64(total), 1))
}

// End says that it is over: with a last line where all went well. The bar goes in either case.
func (m *Meter) End(err error) {
	m.Close()
	if err != nil || m.start.IsZero() {
		return
	}
	elapsed := m.now().Sub(m.start)
	fmt.Fprintf(m.w, "%s %s: %s in %s, %s\n", m.did, m.what, FormatBytes(m.total), FormatDuration(elapsed), FormatRate(m.total, elapsed))
}

// Close takes the bar away and says nothing.
func (m *Meter) Close() {
	if m.bar == nil {
		return
	}
	if !m.bar.IsFinished() { // a finished bar has cleared itself
		_ = m.bar.Clear()
	}
	_ = m.bar.Exit()
	m.bar = nil
}

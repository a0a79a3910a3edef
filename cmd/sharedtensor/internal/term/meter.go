package term

import (
	"fmt"
	"io"
	"time"

	"github.com/schollz/progressbar/v3"
)

// PlainEvery is the minimum time between two progress lines if the output is not a terminal.
const PlainEvery = time.Second

// Meter shows progress: a bar on a terminal, otherwise at most one line per second. End adds a final line. It is used
// by one goroutine at a time.
type Meter struct {
	w          io.Writer
	doing, did string // such as "loading", "loaded"
	what       string
	terminal   bool
	now        func() time.Time

	bar         *progressbar.ProgressBar // on a terminal, after the first update
	start, last time.Time                // zero before the first update
	done, total int64
}

// NewMeter returns a meter that writes to w, usually standard error. It writes nothing before the first update.
func NewMeter(w io.Writer, doing, did, what string) *Meter {
	return &Meter{w: w, doing: doing, did: did, what: Printable(what), terminal: IsTerminal(w), now: time.Now}
}

// Update reports that done of total bytes are complete.
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
		_ = m.bar.Set64(m.done) // best effort: a failure to draw must not stop the operation
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

// line returns the progress as text.
func (m *Meter) line(elapsed time.Duration) string {
	text := fmt.Sprintf("%s %s: %s of %s, %d%%, %s", m.doing, m.what, FormatBytes(m.done), FormatBytes(m.total),
		Portion(m.done, m.total), FormatRate(m.done, elapsed))
	if left := timeLeft(elapsed, m.done, m.total); left > 0 {
		text += ", " + FormatDuration(left) + " left"
	}
	return text
}

// longestLeft is the longest remaining time that is shown.
const longestLeft = 100 * time.Hour

// timeLeft returns the estimated remaining time in whole seconds, or 0 if it is unknown or negligible.
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

// Portion returns the completed percentage, clamped to 0 to 100 because the numbers may come from a peer.
func Portion(done, total int64) int {
	if done <= 0 || total <= 0 {
		return 0
	}
	return int(100 * min(float64(done)/float64(total), 1))
}

// End removes the bar and, if err is nil, prints a final line.
func (m *Meter) End(err error) {
	m.Close()
	if err != nil || m.start.IsZero() {
		return
	}
	elapsed := m.now().Sub(m.start)
	fmt.Fprintf(m.w, "%s %s: %s in %s, %s\n", m.did, m.what, FormatBytes(m.total), FormatDuration(elapsed), FormatRate(m.total, elapsed))
}

// Close removes the bar without a final line.
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

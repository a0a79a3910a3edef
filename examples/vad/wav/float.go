package wav

// Chunk fills dst with the samples from offset at on, scaled to -1 to 1 (by 1/32768), and with zeros behind the clip's
// end. at must not be negative.
func (c *Clip) Chunk(dst []float32, at int) {
	n := 0
	if at < len(c.Samples) {
		for _, s := range c.Samples[at:min(at+len(dst), len(c.Samples))] {
			dst[n] = float32(s) / 32768
			n++
		}
	}
	clear(dst[n:])
}

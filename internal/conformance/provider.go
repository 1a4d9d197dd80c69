package conformance

import "sync/atomic"

type Provider struct{ calls atomic.Int64 }

func (p *Provider) hold([]thing) {}

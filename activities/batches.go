package activities

import (
	"context"

	"termkeeper/internal/store"
)

// batches is one pass over the due rows in statements of growing size. Each row that makes its batch fail by itself is
// found by halving and taken out, so that the others go on.
type batches struct {
	first, most int
	// take works at most limit rows and returns how many it did.
	take func(limit int) (int, error)
	// isolate works the next row alone and takes it out where that fails. It reports whether there was one to take out.
	isolate func() (bool, error)
}

// pass takes batches until one finds nothing. early says that the pace told it to leave before.
func (b batches) pass(ctx context.Context, p *pace) (done, isolated int, early bool, err error) {
	size := b.first
	for {
		if p.mustLeave(ctx) {
			return done, isolated, true, nil
		}
		n, err := b.take(size)
		switch {
		case err == nil && n == 0:
			return done, isolated, false, nil
		case err == nil:
			done += n
			if size < b.first || n == size { // back to the usual after a fault, or far behind
				size = min(2*size, b.most)
			}
		case !store.IsRowFault(err):
			return done, isolated, false, err
		case size > 1:
			size /= 2
		default:
			found, err := b.isolate()
			if err != nil {
				return done, isolated, false, err
			}
			if found {
				isolated++
			}
		}
	}
}

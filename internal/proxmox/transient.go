// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"errors"
	"slices"
)

// IsTransient reports whether the same call may succeed when it is retried: another
// operation holds a lock, the Host or Cluster is unreachable, or the caller ran out of
// time.
func IsTransient(err error) bool {
	return slices.ContainsFunc([]error{
		ErrLocked, ErrBusy, ErrUnknownOutcome, ErrConflict, ErrHostUnreachable, ErrUnreachable, ErrNoQuorum, ErrUnauthorized,
		context.Canceled, context.DeadlineExceeded,
	}, func(kind error) bool { return errors.Is(err, kind) })
}

// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"errors"
	"slices"
)

var transient = []error{
	ErrLocked, ErrBusy, ErrUnknownOutcome, ErrConflict, ErrHostUnreachable, ErrUnreachable, ErrNoQuorum,
	ErrUnauthorized, // a token that is being rotated
	context.Canceled, context.DeadlineExceeded,
}

// IsTransient reports whether the operation that failed with err may succeed
// when it is retried without any other change. After ErrUnknownOutcome, read
// the current state before retrying.
func IsTransient(err error) bool {
	return slices.ContainsFunc(transient, func(kind error) bool { return errors.Is(err, kind) })
}

// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package storageselection

import (
	"fmt"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/celexpression"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// ExpressionError is why a selector is invalid on every Host.
type ExpressionError struct {
	Field, Expression string
	Err               error
}

func (e *ExpressionError) Error() string {
	return fmt.Sprintf("%s %q is invalid: %v; want a CEL expression over storage.name, storage.type, storage.free (bytes) and storage.shared that is true or false",
		e.Field, e.Expression, e.Err)
}

func (e *ExpressionError) Unwrap() error { return e.Err }

// environment has the properties of a storage and the constants Gi and Ti.
var environment = celexpression.NewEnvironment(
	cel.Variable("storage.name", cel.StringType), cel.Variable("storage.type", cel.StringType),
	cel.Variable("storage.free", cel.IntType), cel.Variable("storage.shared", cel.BoolType),
	cel.Constant("Gi", cel.IntType, types.Int(1<<30)), cel.Constant("Ti", cel.IntType, types.Int(1<<40)),
)

func isSelected(program cel.Program, row proxmox.StorageRow) (bool, error) {
	out, _, err := program.Eval(map[string]any{
		"storage.name": row.Name, "storage.type": row.Type, "storage.free": max(0, row.TotalBytes-row.UsedBytes), "storage.shared": row.Shared,
	})
	if err != nil {
		return false, err
	}
	return out == types.True, nil
}

// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package storageselection

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// costLimit bounds the time of an expression. There are no loops: macros such as exists
// are not available.
const costLimit = 10_000

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

var environment = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewEnv(
		cel.ClearMacros(),
		cel.Variable("storage.name", cel.StringType), cel.Variable("storage.type", cel.StringType),
		cel.Variable("storage.free", cel.IntType), cel.Variable("storage.shared", cel.BoolType),
		cel.Constant("Gi", cel.IntType, types.Int(1<<30)), cel.Constant("Ti", cel.IntType, types.Int(1<<40)),
	)
})

// programs caches the result of compile by expression. There are as many as NodeClasses had.
var programs sync.Map

type compilation struct {
	program cel.Program
	err     error
}

func compiled(expression string) (cel.Program, error) {
	if cached, ok := programs.Load(expression); ok {
		c, _ := cached.(compilation)
		return c.program, c.err
	}
	program, err := compile(expression)
	programs.Store(expression, compilation{program, err})
	return program, err
}

func compile(expression string) (cel.Program, error) {
	env, err := environment()
	if err != nil {
		return nil, err
	}
	ast, issues := env.Compile(expression)
	if issues != nil && issues.Err() != nil {
		// The first line has the cause. The others repeat the expression.
		cause, _, _ := strings.Cut(issues.Err().Error(), "\n")
		return nil, errors.New(strings.TrimPrefix(cause, "ERROR: <input>:"))
	}
	if kind := ast.OutputType(); !kind.IsExactType(cel.BoolType) {
		return nil, fmt.Errorf("its type is %s, want bool", kind)
	}
	return env.Program(ast, cel.CostLimit(costLimit))
}

func isSelected(program cel.Program, row proxmox.StorageRow) (bool, error) {
	out, _, err := program.Eval(map[string]any{
		"storage.name": row.Name, "storage.type": row.Type, "storage.free": max(0, row.TotalBytes-row.UsedBytes), "storage.shared": row.Shared,
	})
	if err != nil {
		return false, err
	}
	return out == types.True, nil
}

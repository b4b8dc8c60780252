// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"fmt"
	"math"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/ext"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/celexpression"
)

const expressionHelp = "a CEL expression over cpu (vCPUs) and memory (bytes)"

// VM is the size of a VM, which expressions refer to.
type VM struct {
	CPUs        int
	MemoryBytes int64
}

// String returns the size as messages contain it.
func (vm VM) String() string {
	return fmt.Sprintf("a VM with %d vCPUs and %s of memory", vm.CPUs, resource.NewQuantity(vm.MemoryBytes, resource.BinarySI))
}

// expression is a compiled CEL expression.
type expression struct {
	text      string
	isInteger bool
	program   cel.Program
}

// environment has the variables cpu and memory, the constants Mi and Gi, and math.least
// and math.greatest.
var environment = celexpression.NewEnvironment(
	ext.Math(),
	cel.Variable("cpu", cel.IntType), cel.Variable("memory", cel.IntType),
	cel.Constant("Mi", cel.IntType, types.Int(1<<20)), cel.Constant("Gi", cel.IntType, types.Int(1<<30)),
)

// compile compiles an expression that yields a number or a string.
func compile(text string) (*expression, error) {
	program, kind, err := environment.Compile(text, cel.IntType, cel.DoubleType, cel.StringType)
	if err != nil {
		return nil, err
	}
	return &expression{text: text, isInteger: kind.IsExactType(cel.IntType), program: program}, nil
}

// evaluate returns the value for a VM.
func (e *expression) evaluate(vm VM) (ref.Val, error) {
	out, _, err := e.program.Eval(map[string]any{"cpu": int64(vm.CPUs), "memory": vm.MemoryBytes})
	if err != nil {
		return nil, err
	}
	if number, ok := out.(types.Double); ok && (math.IsNaN(float64(number)) || math.IsInf(float64(number), 0)) {
		return nil, fmt.Errorf("it is %v", float64(number))
	}
	return out, nil
}

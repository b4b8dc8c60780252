// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package celexpression compiles CEL expressions in custom resources.
package celexpression

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
)

const (
	// maxLength and costLimit bound the time of an expression. There are no loops: macros
	// such as map and exists are not available.
	maxLength = 1024
	costLimit = 10_000
)

// Environment contains the variables, constants and functions of expressions.
type Environment struct {
	cel func() (*cel.Env, error)
}

// NewEnvironment returns an Environment. It is built with the first expression.
func NewEnvironment(options ...cel.EnvOption) Environment {
	return Environment{sync.OnceValues(func() (*cel.Env, error) {
		return cel.NewEnv(append([]cel.EnvOption{cel.ClearMacros()}, options...)...)
	})}
}

// Compile compiles an expression that yields one of the types, and returns which. The error
// describes what is wrong with the expression.
func (e Environment) Compile(text string, types ...*cel.Type) (cel.Program, *cel.Type, error) {
	if len(text) > maxLength {
		return nil, nil, fmt.Errorf("it has %d characters, at most %d are allowed", len(text), maxLength)
	}
	env, err := e.cel()
	if err != nil {
		return nil, nil, err
	}
	ast, issues := env.Compile(text)
	if issues != nil && issues.Err() != nil {
		// The first line has the cause. The others repeat the expression.
		cause, _, _ := strings.Cut(issues.Err().Error(), "\n")
		return nil, nil, errors.New(strings.TrimPrefix(cause, "ERROR: <input>:"))
	}
	found := ast.OutputType()
	if !slices.ContainsFunc(types, found.IsExactType) {
		return nil, nil, fmt.Errorf("its type is %s, want %s", found, list(types))
	}
	program, err := env.Program(ast, cel.CostLimit(costLimit))
	return program, found, err
}

// list returns "int, double or string".
func list(types []*cel.Type) string {
	text := types[0].String()
	for n, name := range types[1:] {
		separator := ", "
		if n == len(types)-2 {
			separator = " or "
		}
		text += separator + name.String()
	}
	return text
}

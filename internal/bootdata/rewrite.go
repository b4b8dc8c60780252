// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package bootdata

import (
	"errors"
	"text/template"
	"text/template/parse"
)

// maxSteps limits loop iterations plus sub-template calls in one file. Execution cannot
// be canceled, so {{ range 999999999 }}{{ end }} would block a worker of the controller.
const maxSteps = 10_000

var errTooManySteps = errors.New("more than 10000 loop iterations or sub-template calls")

// stepFunction is called in each loop iteration and sub-template.
const stepFunction = "countStep"

// stepCounter returns the stepFunction, which fails after maxSteps calls.
func stepCounter() func() (string, error) {
	steps := 0
	return func() (string, error) {
		if steps++; steps > maxSteps {
			return "", errTooManySteps
		}
		return "", nil
	}
}

// optionalArgs are the functions whose arguments may be absent keys of .Values.
var optionalArgs = map[string]bool{"default": true, "coalesce": true, "empty": true, "and": true, "or": true, "not": true}

// rewrite changes the parsed templates in two ways. Keys of .Values may be absent in the
// condition of if and with and as arguments of default, coalesce, empty, and, or, not;
// elsewhere an absent key is an error. Loops and sub-templates count their steps.
func rewrite(tmpl *template.Template) {
	for _, t := range tmpl.Templates() {
		if t.Tree != nil && t.Root != nil {
			rewriteList(t.Root)
			t.Root.Nodes = append([]parse.Node{newStepAction(t.Root.Pos)}, t.Root.Nodes...)
		}
	}
}

func rewriteList(list *parse.ListNode) {
	if list == nil {
		return
	}
	for _, node := range list.Nodes {
		switch n := node.(type) {
		case *parse.ActionNode:
			rewritePipe(n.Pipe, false)
		case *parse.TemplateNode:
			rewritePipe(n.Pipe, false)
		case *parse.IfNode:
			rewriteBranch(&n.BranchNode, true)
		case *parse.WithNode:
			rewriteBranch(&n.BranchNode, true)
		case *parse.RangeNode:
			rewriteBranch(&n.BranchNode, false)
			if n.List != nil {
				n.List.Nodes = append([]parse.Node{newStepAction(n.Pos)}, n.List.Nodes...)
			}
		}
	}
}

func rewriteBranch(n *parse.BranchNode, optional bool) {
	rewritePipe(n.Pipe, optional)
	rewriteList(n.List)
	rewriteList(n.ElseList)
}

// rewritePipe rewrites each command of a pipeline. A single operand is optional if the
// whole pipeline is optional, or if it is piped into a function with optional arguments.
func rewritePipe(pipe *parse.PipeNode, optional bool) {
	if pipe == nil {
		return
	}
	for i, cmd := range pipe.Cmds {
		operandOptional := optional && len(pipe.Cmds) == 1
		if i+1 < len(pipe.Cmds) {
			operandOptional = hasOptionalArgs(pipe.Cmds[i+1])
		}
		rewriteCommand(cmd, operandOptional)
	}
}

func rewriteCommand(cmd *parse.CommandNode, optional bool) {
	optional = optional && len(cmd.Args) == 1 || hasOptionalArgs(cmd)
	for i, arg := range cmd.Args {
		if nested, ok := arg.(*parse.PipeNode); ok {
			rewritePipe(nested, optional)
			continue
		}
		if optional {
			cmd.Args[i] = optionalValue(arg)
		}
	}
}

func hasOptionalArgs(cmd *parse.CommandNode) bool {
	name, ok := cmd.Args[0].(*parse.IdentifierNode)
	return ok && optionalArgs[name.Ident]
}

// optionalValue rewrites .Values.key and $.Values.key to (get .Values "key"). It returns
// other operands unchanged.
func optionalValue(arg parse.Node) parse.Node {
	switch n := arg.(type) {
	case *parse.FieldNode:
		if len(n.Ident) == 2 && n.Ident[0] == "Values" {
			values := *n
			values.Ident = n.Ident[:1]
			return newGetCall(&values, n.Ident[1])
		}
	case *parse.VariableNode:
		if len(n.Ident) == 3 && n.Ident[0] == "$" && n.Ident[1] == "Values" {
			values := *n
			values.Ident = n.Ident[:2]
			return newGetCall(&values, n.Ident[2])
		}
	}
	return arg
}

func newGetCall(values parse.Node, key string) parse.Node {
	pos := values.Position()
	literal := &parse.StringNode{NodeType: parse.NodeString, Pos: pos, Quoted: quote(key), Text: key}
	return newCall(pos, "get", values, literal)
}

func newStepAction(pos parse.Pos) parse.Node {
	return &parse.ActionNode{NodeType: parse.NodeAction, Pos: pos, Pipe: newCall(pos, stepFunction)}
}

func newCall(pos parse.Pos, function string, args ...parse.Node) *parse.PipeNode {
	nodes := append([]parse.Node{parse.NewIdentifier(function).SetPos(pos)}, args...)
	cmd := &parse.CommandNode{NodeType: parse.NodeCommand, Pos: pos, Args: nodes}
	return &parse.PipeNode{NodeType: parse.NodePipe, Pos: pos, Cmds: []*parse.CommandNode{cmd}}
}

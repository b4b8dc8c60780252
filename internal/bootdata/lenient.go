// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package bootdata

import (
	"errors"
	"text/template"
	"text/template/parse"
)

// maxSteps bounds the turns of loops and the calls of sub-templates in one
// file. Without it a template such as {{ range 999999999 }}{{ end }} would keep
// a worker of the controller busy for ever: execution cannot be cancelled.
const maxSteps = 10_000

var errTooManySteps = errors.New("more than 10000 loop turns or sub-template calls")

// stepFunction is called at each turn of a loop and of a sub-template.
const stepFunction = "countStep"

// stepCounter returns the function that ends a template which never would.
func stepCounter() func() (string, error) {
	steps := 0
	return func() (string, error) {
		if steps++; steps > maxSteps {
			return "", errTooManySteps
		}
		return "", nil
	}
}

// asking are the functions whose arguments may be absent: templates call them
// to ask about a value, not to use it.
var asking = map[string]bool{"default": true, "coalesce": true, "empty": true, "and": true, "or": true, "not": true}

// prepare rewrites the parsed templates in two ways. Keys of .Values may be
// absent where the template asks about them (as the subject of if or with, or
// as an argument of default, coalesce, empty, and, or, not), since "if this is
// set" is a fair question; anywhere else an absent key is an error. And loops
// and sub-templates count their steps.
func prepare(tmpl *template.Template) {
	for _, t := range tmpl.Templates() {
		if t.Tree != nil && t.Root != nil {
			rewriteList(t.Root)
			t.Root.Nodes = append([]parse.Node{stepAction(t.Root.Pos)}, t.Root.Nodes...)
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
				n.List.Nodes = append([]parse.Node{stepAction(n.Pos)}, n.List.Nodes...)
			}
		}
	}
}

func rewriteBranch(n *parse.BranchNode, asks bool) {
	rewritePipe(n.Pipe, asks)
	rewriteList(n.List)
	rewriteList(n.ElseList)
}

// rewritePipe looks at each command of a pipeline. A lone operand is asked about
// if the whole pipeline is a question, or if it is piped into an asking function.
func rewritePipe(pipe *parse.PipeNode, asks bool) {
	if pipe == nil {
		return
	}
	for i, cmd := range pipe.Cmds {
		question := asks && len(pipe.Cmds) == 1
		if i+1 < len(pipe.Cmds) {
			question = asksAbout(pipe.Cmds[i+1])
		}
		rewriteCommand(cmd, question)
	}
}

func rewriteCommand(cmd *parse.CommandNode, asked bool) {
	asked = asked && len(cmd.Args) == 1 || asksAbout(cmd)
	for i, arg := range cmd.Args {
		if nested, ok := arg.(*parse.PipeNode); ok {
			rewritePipe(nested, asked)
			continue
		}
		if asked {
			cmd.Args[i] = tolerant(arg)
		}
	}
}

func asksAbout(cmd *parse.CommandNode) bool {
	name, ok := cmd.Args[0].(*parse.IdentifierNode)
	return ok && asking[name.Ident]
}

// tolerant turns .Values.key and $.Values.key into (get .Values "key"), and
// leaves every other operand alone.
func tolerant(arg parse.Node) parse.Node {
	switch n := arg.(type) {
	case *parse.FieldNode:
		if len(n.Ident) == 2 && n.Ident[0] == "Values" {
			values := *n
			values.Ident = n.Ident[:1]
			return getCall(&values, n.Ident[1])
		}
	case *parse.VariableNode:
		if len(n.Ident) == 3 && n.Ident[0] == "$" && n.Ident[1] == "Values" {
			values := *n
			values.Ident = n.Ident[:2]
			return getCall(&values, n.Ident[2])
		}
	}
	return arg
}

func getCall(values parse.Node, key string) parse.Node {
	pos := values.Position()
	literal := &parse.StringNode{NodeType: parse.NodeString, Pos: pos, Quoted: quote(key), Text: key}
	return callOf(pos, "get", values, literal)
}

func stepAction(pos parse.Pos) parse.Node {
	return &parse.ActionNode{NodeType: parse.NodeAction, Pos: pos, Pipe: callOf(pos, stepFunction)}
}

func callOf(pos parse.Pos, function string, args ...parse.Node) *parse.PipeNode {
	words := append([]parse.Node{parse.NewIdentifier(function).SetPos(pos)}, args...)
	cmd := &parse.CommandNode{NodeType: parse.NodeCommand, Pos: pos, Args: words}
	return &parse.PipeNode{NodeType: parse.NodePipe, Pos: pos, Cmds: []*parse.CommandNode{cmd}}
}

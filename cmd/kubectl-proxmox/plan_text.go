// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/whatif"
)

// printPlan prints a plan as text. Equal VMs are one row.
func printPlan(out io.Writer, plan *whatif.Plan) error {
	fmt.Fprintf(out, "VMs to create: %d\n", len(plan.Create))
	created := section(out, len(plan.Create), "  COUNT\tNODEPOOL\tHOST\tINSTANCE TYPE\tPRICE/HOUR\tPODS", func(out io.Writer) {
		for _, row := range group(plan.Create, func(vm whatif.VM) string {
			return vm.NodePool + " " + vm.Region + "/" + vm.Host + " " + vm.InstanceType
		}) {
			vm, pods, price := row[0], []string{}, 0.0
			for _, other := range row {
				pods = append(pods, other.Pods...)
				price += other.PricePerHour
			}
			fmt.Fprintf(out, "  %d\t%s\t%s/%s\t%s\t%.4f\t%s\n", len(row), vm.NodePool, vm.Region, vm.Host, vm.InstanceType, price, shortList(pods))
		}
	})
	fmt.Fprintf(out, "VMs to delete: %d\n", len(plan.Delete))
	deleted := section(out, len(plan.Delete), "  NODECLAIM\tNODEPOOL\tHOST\tINSTANCE TYPE\tPRICE/HOUR\tREASON", func(out io.Writer) {
		for _, vm := range plan.Delete {
			fmt.Fprintf(out, "  %s\t%s\t%s/%s\t%s\t%.4f\t%s\n", vm.NodeClaim, vm.NodePool, vm.Region, vm.Host, vm.InstanceType, vm.PricePerHour, vm.Reason)
		}
	})
	fmt.Fprintf(out, "Pods that do not fit: %d\n", len(plan.Unschedulable))
	for _, row := range group(plan.Unschedulable, func(pod whatif.UnschedulablePod) string { return pod.Reason }) {
		var pods []string
		for _, pod := range row {
			pods = append(pods, pod.Pod)
		}
		fmt.Fprintf(out, "  %s: %s\n", shortList(pods), row[0].Reason)
	}
	fmt.Fprintf(out, "Price per hour: %.4f before, %.4f after\n", plan.PriceBefore, plan.PriceAfter)
	for _, note := range plan.Notes {
		fmt.Fprintf(out, "Note: %s\n", note)
	}
	return errors.Join(created, deleted)
}

// group returns the items with the same key together, in the order of their first one.
func group[T any, K cmp.Ordered](items []T, key func(T) K) [][]T {
	var out [][]T
	index := map[K]int{}
	for _, item := range items {
		n, ok := index[key(item)]
		if !ok {
			n = len(out)
			index[key(item)] = n
			out = append(out, nil)
		}
		out[n] = append(out[n], item)
	}
	return out
}

// section prints a table, unless it is empty.
func section(out io.Writer, rows int, header string, write func(io.Writer)) error {
	if rows == 0 {
		return nil
	}
	return table(out, header, write)
}

// maxListed is how many names a row lists.
const maxListed = 3

// shortList returns the first names and the number of the others.
func shortList(names []string) string {
	if more := len(names) - maxListed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxListed], ", "), more)
	}
	return strings.Join(names, ", ")
}

// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Command gen generates the compact schema files from Proxmox's published API schema.
//
//	go run ./pvesim/internal/schema/gen -reference DIR -methods FILE -out pvesim/internal/schema
//
// FILE lists the served methods, one "GET /version" per line.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/schema"
)

func main() {
	reference := flag.String("reference", os.Getenv("PVE_REFERENCE"), "directory with pve-schema-8.4.json and pve-schema-9.2.json")
	methods := flag.String("methods", "pvesim/internal/schema/served.txt", "list of the methods to describe")
	out := flag.String("out", "pvesim/internal/schema", "directory to write to")
	flag.Parse()
	if err := run(*reference, *methods, *out); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(reference, methods, out string) error {
	list, err := os.ReadFile(methods) //nolint:gosec // the developer names the file
	if err != nil {
		return fmt.Errorf("reading the list of methods: %w", err)
	}
	for _, version := range []string{"8.4", "9.2"} {
		tree, err := os.ReadFile(filepath.Join(reference, "pve-schema-"+version+".json")) //nolint:gosec // the developer names the file
		if err != nil {
			return fmt.Errorf("reading the published schema: %w", err)
		}
		compact, err := schema.Compact(version, tree, string(list))
		if err != nil {
			return err
		}
		file := filepath.Join(out, "methods-"+version+".json")
		if err := os.WriteFile(file, compact, 0o644); err != nil { //nolint:gosec // a source file
			return fmt.Errorf("writing the schema: %w", err)
		}
	}
	return nil
}

// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Command docs writes the reference pages that follow from the code.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/operator"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: docs DIRECTORY")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("making %s, %w", dir, err)
	}
	templates, err := templates()
	if err != nil {
		return err
	}
	metrics, err := metricsPage()
	if err != nil {
		return fmt.Errorf("describing the metrics, %w", err)
	}
	for name, page := range map[string]string{"settings.md": settings(), "templates.md": templates, "metrics.md": metrics} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(page), 0o644); err != nil {
			return fmt.Errorf("writing %s, %w", path, err)
		}
	}
	return nil
}

func settings() string {
	var b strings.Builder
	b.WriteString("# Settings\n\n<!-- Written by \"make generate\" from internal/operator/options.go. -->\n\n" +
		"Flags and environment variables of the Proxmox provider. A flag wins over its variable. Beside these, all of\n" +
		"[Karpenter's own settings](https://karpenter.sh/docs/reference/settings/) apply. In the chart each stands below\n" +
		"`settings`, for example `settings.proxmoxPollInterval: 10s`.\n\n" +
		"| flag | variable | chart value | default | meaning |\n|---|---|---|---|---|\n")
	for _, option := range operator.OptionTable() {
		flag := "–"
		if option.Flag != "" {
			flag = "`--" + option.Flag + "`"
		}
		value := "`config`"
		if option.Env != operator.CloudConfigVariable {
			value = "`settings." + option.ChartValue() + "`"
		}
		fmt.Fprintf(&b, "| %s | `%s` | %s | %s | %s |\n", flag, option.Env, value, code(option.Default), option.Help)
	}
	return b.String()
}

func code(value string) string {
	if value == "" {
		return "–"
	}
	return "`" + value + "`"
}

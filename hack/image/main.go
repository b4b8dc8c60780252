// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Command image builds the controller's image: one static binary and its bill of materials, without a distribution or a
// shell. It needs Go and no container tools. It writes an OCI image layout, which "crane push", podman and skopeo accept.
// The image is reproducible: the same source results in the same bytes.
package main

import (
	"debug/elf"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

func main() {
	out := flag.String("out", ".cache/image", "directory of the image layout; its content is replaced")
	version := flag.String("version", "dev", "version that the binary reports")
	arches := flag.String("arch", "amd64,arm64", "architectures, separated by commas")
	flag.Parse()
	if err := run(*out, *version, strings.Split(*arches, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(out, version string, arches []string) error {
	created, err := sourceDate()
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "image-")
	if err != nil {
		return fmt.Errorf("creating a temporary directory: %w", err)
	}
	defer func() { _ = os.RemoveAll(work) }()
	var platforms []platform
	for _, arch := range arches {
		path := filepath.Join(work, "controller-"+arch)
		if err := build(path, arch, version); err != nil {
			return err
		}
		p := platform{arch: arch}
		if p.sbom, err = billOfMaterials(path, version, created); err != nil {
			return err
		}
		if p.binary, err = os.ReadFile(path); err != nil {
			return fmt.Errorf("reading the binary: %w", err)
		}
		platforms = append(platforms, p)
	}
	digest, err := write(out, version, created, platforms)
	if err != nil {
		return err
	}
	fmt.Printf("%s: %s, %s\n", out, strings.Join(arches, " and "), digest)
	return nil
}

// sourceDate returns the time of all files in the image: the time of the source and not of the build.
// https://reproducible-builds.org/specs/source-date-epoch/
func sourceDate() (time.Time, error) {
	value := os.Getenv("SOURCE_DATE_EPOCH")
	if value == "" {
		return time.Unix(0, 0).UTC(), nil
	}
	seconds, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("reading SOURCE_DATE_EPOCH: found %q, want seconds since 1970", value)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

// build builds the binary of a release. Because of -trimpath and -buildvcs=false it does not depend on the directory.
func build(path, arch, version string) error {
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", path,
		"-ldflags", "-s -w -X sigs.k8s.io/karpenter/pkg/operator.Version="+version, "./cmd/controller")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("building the controller for %s: %w", arch, err)
	}
	return checkStatic(path)
}

// checkStatic returns an error if a binary needs a dynamic linker, which the image does not contain.
func checkStatic(path string) error {
	binary, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("reading the binary: %w", err)
	}
	defer func() { _ = binary.Close() }()
	for _, program := range binary.Progs {
		if program.Type == elf.PT_INTERP {
			return errors.New("the binary is not static: it needs a dynamic linker")
		}
	}
	return nil
}

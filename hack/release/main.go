// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Command release builds what a release publishes. It needs Go and no container tools, and everything that it builds is
// reproducible: the same source results in the same bytes.
//
//	release image       the controller's image: one static binary and its bill of materials, without a distribution or a
//	                    shell, as an OCI image layout, which "crane push", podman and skopeo accept
//	release archives    the other programs, each with its bill of materials, and the manifest for krew
//	release provenance  the provenance of these (SLSA), for "cosign attest"
//	release notes       the text of the release page, from the changelog
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
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	command := ""
	if len(args) > 0 {
		command, args = args[0], args[1:]
	}
	flags := flag.NewFlagSet(command, flag.ContinueOnError)
	out := flags.String("out", ".cache/"+command, "directory to write to; that of an image is emptied before")
	version := flags.String("version", "dev", "version that the programs report")
	arches := flags.String("arch", "amd64,arm64", "architectures, separated by commas")
	systems := flags.String("os", "linux,darwin,windows", "operating systems of the archives, separated by commas")
	if err := flags.Parse(args); err != nil {
		return err
	}
	created, err := sourceDate()
	if err != nil {
		return err
	}
	r := release{out: *out, version: *version, arches: strings.Split(*arches, ","), systems: strings.Split(*systems, ","), created: created}
	switch command {
	case "image":
		return r.image()
	case "archives":
		return r.archives()
	case "provenance":
		return r.provenance()
	case "notes":
		return r.notes()
	}
	return fmt.Errorf("found the command %q, want image, archives, provenance or notes", command)
}

// release is what the commands have in common.
type release struct {
	out, version    string
	arches, systems []string
	created         time.Time
}

func (r release) image() error {
	var platforms []platform
	for _, arch := range r.arches {
		binary, sbom, err := r.build("controller", "linux", arch)
		if err != nil {
			return err
		}
		platforms = append(platforms, platform{arch: arch, binary: binary, sbom: sbom})
	}
	digest, err := write(r.out, r.version, r.created, platforms)
	if err != nil {
		return err
	}
	fmt.Printf("%s: %s, %s\n", r.out, strings.Join(r.arches, " and "), digest)
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

// build builds a program as it is released and returns it with its bill of materials. Because of -trimpath and
// -buildvcs=false it does not depend on the directory.
func (r release) build(program, system, arch string) (binary, sbom []byte, err error) {
	work, err := os.MkdirTemp("", "release-")
	if err != nil {
		return nil, nil, fmt.Errorf("creating a temporary directory: %w", err)
	}
	defer func() { _ = os.RemoveAll(work) }()
	path := filepath.Join(work, program)
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", path,
		"-ldflags", "-s -w -X sigs.k8s.io/karpenter/pkg/operator.Version="+r.version+" -X main.version="+r.version, "./cmd/"+program)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+system, "GOARCH="+arch)
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return nil, nil, fmt.Errorf("building %s for %s on %s: %w", program, system, arch, err)
	}
	if system == "linux" {
		if err := checkStatic(path); err != nil {
			return nil, nil, fmt.Errorf("%s for %s: %w", program, arch, err)
		}
	}
	if sbom, err = billOfMaterials(path, r.version, r.created); err != nil {
		return nil, nil, err
	}
	if binary, err = os.ReadFile(path); err != nil {
		return nil, nil, fmt.Errorf("reading %s: %w", program, err)
	}
	return binary, sbom, nil
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

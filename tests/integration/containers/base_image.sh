#!/usr/bin/env bash
# Builds a base image from Debian's packages where none can be pulled: base_image.sh TAG FOLDER
#
# Needs root, a container engine, and either debootstrap or `apt-get download`. FOLDER is for scratch
# and may be removed afterwards. The machine's own certificate authorities go in, so that a package
# index behind one of them can be reached while an image is built on this base.
set -euo pipefail

tag=$1 folder=$2
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
# Where this machine has its own packages from.
mirror=$(apt-get indextargets --format '$(CODENAME) $(REPO_URI)' \
  | awk -v suite="$suite" '$1 == suite && !found { print $2; found = 1 }')

debootstrap=$(command -v debootstrap || true)
if [ -z "$debootstrap" ]; then
  # The package is a script and a folder of scripts: it needs no installation.
  mkdir -p "$folder/package"
  cd "$folder/package"
  apt-get download --quiet debootstrap \
    || { apt-get update --quiet && apt-get download --quiet debootstrap; }
  dpkg-deb -x debootstrap_*.deb .
  cd - >/dev/null
  export DEBOOTSTRAP_DIR=$folder/package/usr/share/debootstrap
  debootstrap=$folder/package/usr/sbin/debootstrap
fi

sh "$debootstrap" --variant=minbase --include=python3,python3-venv,ca-certificates \
  "$suite" "$folder/system" ${mirror:+"$mirror"}
cp /etc/ssl/certs/ca-certificates.crt "$folder/system/etc/ssl/certs/ca-certificates.crt"
tar -C "$folder/system" -c \
  --exclude=./var/cache/apt --exclude=./var/lib/apt/lists --exclude=./usr/share/doc . \
  | docker import --message "Debian $suite with Python, for tests" - "$tag"

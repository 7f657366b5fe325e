#pragma once

namespace apex::amp::detail {

/// Takes `item` out of the list that begins at `top` and goes on by each one's `outer`, wherever in it it stands; nothing where
/// it is not in it.
template <class T>
void unlink(T*& top, const T* item, T* T::*outer) {
  T** link = &top;
  while (*link && *link != item) link = &((*link)->*outer);
  if (*link) *link = item->*outer;
}

}  // namespace apex::amp::detail
